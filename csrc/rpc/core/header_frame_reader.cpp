#include "rpc/core/header_frame_reader.hpp"

#include <cstring>

#include "base/data_type.hpp"

namespace axon::rpc {

namespace {

class Cursor {
 public:
  explicit Cursor(std::span<std::byte> bytes) noexcept : rest_(bytes) {}

  bool has(uint64_t num_bytes) const noexcept { return num_bytes <= rest_.size(); }
  bool at_end() const noexcept { return rest_.empty(); }
  // Takes bytes and the padding following them; the caller has checked that they are there.
  std::span<std::byte> take(size_t num_bytes) noexcept {
    const auto taken = rest_.first(num_bytes);
    rest_ = rest_.subspan(padded(num_bytes));
    return taken;
  }
  template <typename T>
  T take() noexcept {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

 private:
  std::span<std::byte> rest_;
};

// Returns false if the tensor's size overflows.
bool multiply(std::span<const int64_t> shape, uint64_t element_num_bytes, uint64_t& num_bytes) noexcept {
  uint64_t num_elements = 1;
  bool fits = true;
  for (const int64_t size : shape) {
    fits &= size >= 0 && !__builtin_mul_overflow(num_elements, static_cast<uint64_t>(size), &num_elements);
  }
  fits &= element_num_bytes != 0 || num_elements == 0;
  return fits && !__builtin_mul_overflow(num_elements, element_num_bytes, &num_bytes);
}

// Types above kComplex128 are checked by the clients that define them.
bool has_length_of_its_type(const TensorDescriptor& descriptor) noexcept {
  return descriptor.dtype > static_cast<uint8_t>(DataType::kComplex128) ||
         descriptor.element_num_bytes == size_of(static_cast<DataType>(descriptor.dtype));
}

const char* read_tensor(Cursor& cursor, uint64_t& num_left, Inbound::Tensor& tensor) {
  if (!cursor.has(sizeof(TensorDescriptor))) return "the header frame ends within a tensor's descriptor";
  const auto descriptor = cursor.take<TensorDescriptor>();
  const size_t num_shape_bytes = descriptor.num_dimensions * sizeof(int64_t);
  if (descriptor.num_dimensions > kMostDimensions || !cursor.has(num_shape_bytes))
    return "a tensor has too many dimensions";
  const auto shape_bytes = cursor.take(num_shape_bytes);
  const std::span shape(reinterpret_cast<const int64_t*>(shape_bytes.data()), descriptor.num_dimensions);
  if (descriptor.kind > MemoryKind::kCuda || descriptor.location > TensorLocation::kExposed ||
      descriptor.reserved != 0) {
    return "a tensor's descriptor has an unknown kind";
  }
  if (!has_length_of_its_type(descriptor)) return "a tensor's element size does not match its type";
  uint64_t num_bytes = 0;
  if (!multiply(shape, descriptor.element_num_bytes, num_bytes)) return "a tensor has an invalid shape";
  if (num_bytes > num_left) return "the message exceeds max_message_num_bytes";
  num_left -= num_bytes;
  tensor.dtype = descriptor.dtype;
  tensor.kind = descriptor.kind;
  tensor.shape = shape;
  tensor.data.num_bytes = num_bytes;
  tensor.location = descriptor.location;
  return nullptr;
}

}  // namespace

const char* read_header_frame(std::span<std::byte> bytes, uint64_t max_message_num_bytes, HeaderFrame& header_frame,
                              std::vector<Inbound::Tensor>& tensors) {
  tensors.clear();
  if (bytes.size() < sizeof(HeaderFramePrefix) || bytes.size() % 8 != 0) return "the header frame is truncated";
  Cursor cursor(bytes);
  const auto prefix = cursor.take<HeaderFramePrefix>();
  if (prefix.reserved != 0 || prefix.num_tensors > kMostTensors) return "the header frame has an unknown format";
  const size_t num_text_bytes = size_t{prefix.name_num_bytes} + prefix.num_value_bytes;
  if (!cursor.has(padded(num_text_bytes))) return "the header frame ends within its name or values";
  const auto text = cursor.take(num_text_bytes);
  header_frame.name = {reinterpret_cast<const char*>(text.data()), prefix.name_num_bytes};
  header_frame.values = text.subspan(prefix.name_num_bytes);
  uint64_t num_left = max_message_num_bytes;
  header_frame.num_payload_frames = 0;
  tensors.resize(prefix.num_tensors);
  for (Inbound::Tensor& tensor : tensors) {
    if (const char* fault = read_tensor(cursor, num_left, tensor)) return fault;
    header_frame.num_payload_frames += tensor.location == TensorLocation::kHeaderFrame ? 0 : 1;
  }
  for (Inbound::Tensor& tensor : tensors) {
    if (tensor.location == TensorLocation::kPayloadFrame) continue;
    const bool is_exposed = tensor.location == TensorLocation::kExposed;
    const size_t num_bytes = is_exposed ? sizeof(MemoryHandle) : tensor.data.num_bytes;
    if (!cursor.has(padded(num_bytes))) return "the header frame ends within a tensor";
    const std::span<std::byte> bytes_here = cursor.take(num_bytes);
    if (is_exposed) {
      std::memcpy(tensor.memory_handle.data(), bytes_here.data(), sizeof(MemoryHandle));
    } else {
      tensor.data.data = bytes_here.data();
    }
  }
  return cursor.at_end() ? nullptr : "the header frame has trailing bytes";
}

}  // namespace axon::rpc
