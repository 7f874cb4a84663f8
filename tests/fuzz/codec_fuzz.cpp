// Fuzzes frames of the codec. Any bytes are decoded within their buffers, alike by all kernels. Any bytes that are
// taken for data come back from their frames.
#include <algorithm>
#include <vector>

#include "codec/kernels.hpp"
#include "fuzz.hpp"

namespace axon::codec {
namespace {

using Bytes = std::vector<std::byte>;

void decode_foreign(Format format, std::span<const std::byte> bytes, size_t num_output_bytes) {
  const Bytes encoded(bytes.begin(), bytes.end());  // of its own, so that a sanitizer knows its end
  Bytes first(num_output_bytes);
  const auto expected = decode(kScalarKernels, format, encoded, first);
  for (const KernelTable* const kernels : usable_tables()) {
    Bytes output(num_output_bytes);
    const auto decoded = decode(*kernels, format, encoded, output);
    CHECK(decoded.ok() == expected.ok() && output == first);
    if (!decoded.ok()) continue;
    CHECK(decoded.value().num_read == expected.value().num_read);
    CHECK(decoded.value().num_read <= encoded.size() && decoded.value().num_written <= output.size());
  }
}

void restore(Format format, std::span<const std::byte> bytes) {
  // Repeated to more than a frame.
  Bytes data;
  while (!bytes.empty() && data.size() < frame_bytes(format) + 100) data.insert(data.end(), bytes.begin(), bytes.end());
  for (const KernelTable* const kernels : usable_tables()) {
    Bytes frames(most_encoded_bytes(format, data.size()));
    frames.resize(encode(*kernels, format, data, frames.data()));
    Bytes output(data.size());
    const auto decoded = decode(*kernels, format, frames, output);
    CHECK(decoded.ok() && decoded.value().num_read == frames.size() && output == data);
  }
}

}  // namespace
}  // namespace axon::codec

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  axon::Input input(data, num_bytes);
  const auto format = input.take<uint8_t>() % 2 == 0 ? axon::codec::Format::kBFloat16 : axon::codec::Format::kFloat32;
  const size_t num_output_bytes = input.take<uint16_t>();
  const auto rest = std::as_bytes(input.rest());
  axon::codec::decode_foreign(format, rest, num_output_bytes);
  axon::codec::restore(format, rest);
  return 0;
}
