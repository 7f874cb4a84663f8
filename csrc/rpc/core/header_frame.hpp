// The first message of a call or an answer: whom it is for, plain values, and what tensors belong to it. docs/wire.md.
//
//   prefix | name, values | a descriptor and a shape for each tensor | the bytes of small tensors     each padded to 8
//
// A call with a few values, or a small tensor, and a short name takes one line of a ring (transport/rings).
// Larger tensors follow as messages of their own ("payload frames"), straight from and into their memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "memory/buffer.hpp"

namespace axon::rpc {

struct HeaderFramePrefix {
  uint32_t num_value_bytes = 0;
  uint16_t num_tensors = 0;
  uint8_t name_num_bytes = 0;
  uint8_t reserved = 0;
};
static_assert(sizeof(HeaderFramePrefix) == 8);

enum class TensorLocation : uint8_t {
  kHeaderFrame,
  kPayloadFrame,
  kExposed,  // stays with its sender, who says where it lies and keeps it so until the receiver has read it
};

// Where a tensor lies that is exposed: of the doors' making, in the place of its bytes.
using MemoryHandle = std::array<std::byte, 32>;
// The payload of the payload frame that stands for it, which is never fetched: it is refused when the tensor has been
// read.
inline constexpr size_t kExposedFrameNumBytes = 1;

struct TensorDescriptor {
  uint8_t dtype = 0;                    // a DataType, or what else both ends agree on, from 128 on
  MemoryKind kind = MemoryKind::kHost;  // of the sender's tensor
  uint8_t num_dimensions = 0;
  TensorLocation location = TensorLocation::kHeaderFrame;
  uint16_t element_num_bytes = 0;  // times its sizes: what it is long
  uint16_t reserved = 0;
};
static_assert(sizeof(TensorDescriptor) == 8);

// Of all plain values of a message. What is larger is data, and travels as tensors.
inline constexpr size_t kMostValueBytes = size_t{1} << 30;
inline constexpr size_t kMostTensors = 4096;
inline constexpr size_t kMostDimensions = 64;
inline constexpr size_t kLongestName = 255;
// What names of the library's own functions begin with.
inline constexpr std::string_view kOwnNames = "axon.";
// Tells a mailbox of messages that will not come, for which others there may wait.
inline constexpr std::string_view kSettled = "axon.settled";
// Message header and header frame fit into one fragment of UCX's over shared memory.
inline constexpr size_t kLongestWithTensors = 8000;

inline constexpr size_t padded(size_t num_bytes) noexcept {
  return (num_bytes + 7) / 8 * 8;
}

}  // namespace axon::rpc
