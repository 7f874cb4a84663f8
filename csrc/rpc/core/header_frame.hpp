// Layout of a header frame, the first message of a call or an answer. It names the function, and holds plain values and
// the tensors' descriptions. Format: docs/wire.md.
//
//   prefix | name, values | a descriptor and a shape for each tensor | the bytes of small tensors     each padded to 8
//
// A call with a few values or a small tensor and a short name fits into one ring entry (transport/rings). Larger
// tensors follow as messages of their own ("payload frames"), directly from and into their memory.
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
  kExposed,  // stays with its sender, which keeps it unchanged until the receiver has read it
};

// Location of an exposed tensor, defined by the clients. It replaces the tensor's bytes.
using MemoryHandle = std::array<std::byte, 32>;
// Payload size of the payload frame that represents an exposed tensor. It is never fetched; the receiver answers it
// with a NACK after reading the tensor.
inline constexpr size_t kExposedFrameNumBytes = 1;
// A larger buffer of a header frame is not kept for the next one.
inline constexpr size_t kMostHeaderKept = size_t{1} << 16;

struct TensorDescriptor {
  uint8_t dtype = 0;                    // a DataType, or from 128 on a type that both ends agree on
  MemoryKind kind = MemoryKind::kHost;  // of the sender's tensor
  uint8_t num_dimensions = 0;
  TensorLocation location = TensorLocation::kHeaderFrame;
  uint16_t element_num_bytes = 0;  // size of an element; times the dimensions: the tensor's bytes
  uint16_t reserved = 0;
};
static_assert(sizeof(TensorDescriptor) == 8);

// Limits per message. kMostValueBytes is for all plain values together; larger data travels as tensors.
inline constexpr size_t kMostValueBytes = size_t{1} << 30;
inline constexpr size_t kMostTensors = 4096;
inline constexpr size_t kMostDimensions = 64;
inline constexpr size_t kLongestName = 255;
// Prefix of the names of the library's own functions.
inline constexpr std::string_view kOwnNames = "axon.";
// Tells a mailbox about messages that will not arrive, but for which later ones may be waiting.
inline constexpr std::string_view kSettled = "axon.settled";
// Message header and header frame fit into one fragment of UCX over shared memory.
inline constexpr size_t kLongestWithTensors = 8000;

inline constexpr size_t padded(size_t num_bytes) noexcept {
  return (num_bytes + 7) / 8 * 8;
}

}  // namespace axon::rpc
