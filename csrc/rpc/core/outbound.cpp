#include "rpc/core/outbound.hpp"

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/data_type.hpp"

namespace axon::rpc {

// A larger tensor is sent separately: copying it into the header frame, and out of it, costs more than another message.
static constexpr size_t kLargestInline = 4096;
// The payload frame that represents an exposed tensor.
static constexpr std::byte kNothing{};
static constexpr ConstBuffer kExposedFrame{.data = &kNothing, .num_bytes = kExposedFrameNumBytes};

// Returns where the next item goes.
static std::byte* put_padded(std::byte* to, const void* data, size_t num_bytes) noexcept {
  std::byte* const end = to + padded(num_bytes);
  if (end == to) return end;
  std::memset(end - 8, 0, 8);
  copy_few(to, data, num_bytes);
  return end;
}

void Outbound::open(std::string_view name) {
  clear();
  name_num_bytes_ = static_cast<uint8_t>(name.size());
  bytes_.resize(sizeof(HeaderFramePrefix) + name.size());
  copy_few(bytes_.data() + sizeof(HeaderFramePrefix), name.data(), name.size());
}

void Outbound::refuse(std::string why) {
  if (fits_.ok()) fits_ = Status(ErrorCode::kInvalidArgument, std::move(why));
}

static std::string too_many(const char* what, size_t count, size_t most) {
  return std::string(what) + " " + std::to_string(count) + "; allowed: up to " + std::to_string(most);
}

// Returns nothing for an invalid shape.
static std::optional<size_t> count_elements(std::span<const int64_t> shape) noexcept {
  size_t num_elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(num_elements, static_cast<size_t>(size), &num_elements)) return {};
  }
  return num_elements;
}

// Returns the size of an element. For types that clients define, it is the tensor's bytes divided by its elements.
uint16_t Outbound::element_num_bytes_of(const TensorView& tensor) {
  const std::optional<size_t> counted = count_elements(tensor.shape);
  if (!counted) refuse("a tensor's shape has a negative size, or its number of elements overflows 64 bits");
  const size_t num_elements = counted.value_or(0);
  const bool is_known = tensor.dtype <= static_cast<uint8_t>(DataType::kComplex128);
  const size_t num_bytes = is_known            ? size_of(static_cast<DataType>(tensor.dtype))
                           : num_elements == 0 ? 0
                                               : tensor.data.num_bytes / num_elements;
  if (num_elements * num_bytes != tensor.data.num_bytes) {
    refuse("a tensor of " + std::to_string(num_elements) + " elements has " + std::to_string(tensor.data.num_bytes) +
           " bytes; expected: " + std::to_string(num_elements * num_bytes));
  } else if (num_bytes > std::numeric_limits<uint16_t>::max()) {
    refuse(too_many("bytes per element of a tensor:", num_bytes, std::numeric_limits<uint16_t>::max()));
  }
  return static_cast<uint16_t>(num_bytes);
}

size_t Outbound::add(const TensorView& tensor, Owner owner) {
  if (tensor.shape.size() > kMostDimensions) {
    refuse(too_many("dimensions of a tensor:", tensor.shape.size(), kMostDimensions));
  }
  if (tensors_.size() >= kMostTensors) refuse(too_many("tensors of a message:", tensors_.size() + 1, kMostTensors));
  Tensor& added = tensors_.emplace_back();
  added.descriptor = {.dtype = tensor.dtype,
                      .kind = tensor.kind,
                      .num_dimensions = static_cast<uint8_t>(tensor.shape.size()),
                      .element_num_bytes = element_num_bytes_of(tensor)};
  added.shape_offset = shapes_.size();
  added.data = tensor.data;
  added.owner = std::move(owner);
  for (const int64_t size : tensor.shape) shapes_.push_back(size);
  return tensors_.size() - 1;
}

size_t Outbound::expose(const TensorView& tensor, const MemoryHandle& memory_handle, Owner owner) {
  const size_t index = add(tensor, std::move(owner));
  tensors_[index].descriptor.location = TensorLocation::kExposed;
  tensors_[index].memory_handle = memory_handle;
  return index;
}

void Outbound::seal() {
  const size_t num_value_bytes = bytes_.size() - sizeof(HeaderFramePrefix) - name_num_bytes_;
  if (num_value_bytes > kMostValueBytes) {
    refuse(too_many("bytes of plain values of a message (send larger data as tensors):", num_value_bytes,
                    kMostValueBytes));
  }
  const HeaderFramePrefix prefix{.num_value_bytes = static_cast<uint32_t>(num_value_bytes),
                                 .num_tensors = static_cast<uint16_t>(tensors_.size()),
                                 .name_num_bytes = name_num_bytes_};
  std::memcpy(bytes_.data(), &prefix, sizeof prefix);
  const size_t num_values_end = bytes_.size(), num_before = padded(num_values_end);
  bytes_.resize(num_before + locate_tensors(num_before));
  std::byte* end = bytes_.data() + num_before;
  std::memset(bytes_.data() + num_values_end, 0, num_before - num_values_end);
  for (const Tensor& tensor : tensors_) {
    std::memcpy(end, &tensor.descriptor, sizeof tensor.descriptor);
    end = put_padded(end + sizeof tensor.descriptor, shapes_.data() + tensor.shape_offset,
                     tensor.descriptor.num_dimensions * sizeof(int64_t));
  }
  for (const Tensor& tensor : tensors_) {
    if (tensor.descriptor.location == TensorLocation::kExposed) {
      end = put_padded(end, &tensor.memory_handle, sizeof(MemoryHandle));
    } else if (tensor.descriptor.location == TensorLocation::kHeaderFrame) {
      end = put_padded(end, tensor.data.data, tensor.data.num_bytes);
    }
  }
  tensors_.clear();
}

void Outbound::copy(const Outbound& sealed, Owner owner) {
  clear();
  bytes_ = sealed.bytes_;
  fits_ = sealed.fits_.clone();
  name_num_bytes_ = sealed.name_num_bytes_;
  for (const PayloadFrame& frame : sealed.payload_frames_)
    payload_frames_.push_back({frame.index, frame.data, {}, frame.is_exposed});
  if (!payload_frames_.empty()) payload_frames_.front().owner = std::move(owner);
}

// Decides which tensors are sent separately. Returns the bytes that all of them take in the header frame, following its
// first `num_before` bytes.
size_t Outbound::locate_tensors(size_t num_before) {
  size_t num_bytes = tensors_.size() * sizeof(TensorDescriptor) + shapes_.size() * sizeof(int64_t);
  for (uint32_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    const bool is_exposed = tensor.descriptor.location == TensorLocation::kExposed;
    if (tensor.data.data == nullptr && tensor.data.num_bytes != 0 && !is_exposed) {
      refuse("a tensor of " + std::to_string(tensor.data.num_bytes) + " bytes has no memory: its data is null");
      tensor.data.num_bytes = 0;
    }
    const size_t num_inline = padded(tensor.data.num_bytes);
    const bool fits = num_inline <= kLargestInline && num_before + num_bytes + num_inline <= kLongestWithTensors;
    if (is_exposed) {
      num_bytes += sizeof(MemoryHandle);
      payload_frames_.push_back({index, kExposedFrame, std::move(tensor.owner), true});
    } else if (fits || tensor.data.num_bytes == 0) {
      num_bytes += num_inline;
    } else {
      tensor.descriptor.location = TensorLocation::kPayloadFrame;
      payload_frames_.push_back({index, tensor.data, std::move(tensor.owner), false});
    }
  }
  return num_bytes;
}

const std::atomic<uint32_t>* Outbound::start_flag() const noexcept {
  for (const StartFlag& each : start_flags_) {
    if (each.flag->load(std::memory_order_acquire) == 0) return each.flag;
  }
  return nullptr;
}

Status Outbound::send(messaging::Messenger& messenger, transport::PeerId peer, const transport::CallHeader& header,
                      transport::MessageKind payload_kind) noexcept {
  if (!fits_.ok()) return fits_.clone();
  transport::Transport& transport = messenger.transport();
  const auto took = [this](std::optional<Status> sent) -> Status {
    if (!sent) return Status();
    --num_moving_;
    return std::move(*sent);
  };
  ++num_moving_;
  AXON_TRY(took(transport.send(peer, header, {bytes_.data(), bytes_.size()}, *this)));
  if (payload_frames_.empty()) return Status();
  transport::CallHeader payload_header = header;
  payload_header.kind = payload_kind;
  for (const PayloadFrame& each : payload_frames_) {
    payload_header.tensor = each.index;
    ++num_moving_;
    AXON_TRY(took(each.is_exposed ? transport.send_rendezvous(peer, payload_header, each.data, *this)
                                  : transport.send(peer, payload_header, each.data, *this)));
  }
  return Status();
}

void Outbound::on_done(transport::Completion& self, Status) noexcept {
  auto& outbound = static_cast<Outbound&>(self);
  if (--outbound.num_moving_ == 0) outbound.listener_.on_sent();
}

void Outbound::clear() noexcept {
  if (bytes_.empty() && start_flags_.empty()) return;  // nothing was written since then
  if (bytes_.capacity() > kMostHeaderKept) bytes_ = {};
  bytes_.clear();
  fits_ = Status();
  tensors_.clear();
  shapes_.clear();
  payload_frames_.clear();
  start_flags_.clear();
}

}  // namespace axon::rpc
