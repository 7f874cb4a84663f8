// Fuzzes a header frame from a peer and the values in it: all reads lie within the frame, whatever it contains.
#include "fuzz.hpp"
#include "rpc/core/header_frame_reader.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {
namespace {

constexpr uint64_t kMostBytes = 1 << 20;

bool lies_within(std::span<const std::byte> outer, const std::byte* data, size_t num_bytes) {
  return data >= outer.data() && data + num_bytes <= outer.data() + outer.size();
}

void check_values(std::span<const std::byte> values) {
  ValueReader reader(values);
  size_t num_read = 0;
  for (Value value = reader.next(); value.kind != Value::Kind::kBroken; value = reader.next()) {
    CHECK(++num_read <= values.size());
    if (!value.bytes.empty()) CHECK(lies_within(values, value.bytes.data(), value.bytes.size()));
    const bool counts = value.kind == Value::Kind::kArray || value.kind == Value::Kind::kMap;
    if (counts) CHECK(value.count <= values.size() || value.count <= 15);
  }
}

void check_header_frame(std::span<std::byte> bytes) {
  HeaderFrame header_frame;
  std::vector<Inbound::Tensor> tensors;
  if (read_header_frame(bytes, kMostBytes, header_frame, tensors) != nullptr) return;
  CHECK(tensors.size() <= kMostTensors && header_frame.num_payload_frames <= tensors.size());
  uint64_t num_bytes = 0;
  for (const Inbound::Tensor& tensor : tensors) {
    num_bytes += tensor.data.num_bytes;
    CHECK(tensor.shape.size() <= kMostDimensions);
    const bool is_here = tensor.location == TensorLocation::kHeaderFrame && tensor.data.num_bytes != 0;
    if (is_here) CHECK(lies_within(bytes, tensor.data.data, tensor.data.num_bytes));
  }
  CHECK(num_bytes <= kMostBytes);
  check_values(header_frame.values);
}

}  // namespace
}  // namespace axon::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const auto input = std::as_bytes(std::span(data, num_bytes));
  axon::rpc::check_values(input);
  std::vector<std::byte> bytes(input.begin(), input.end());
  axon::rpc::check_header_frame(bytes);
  return 0;
}
