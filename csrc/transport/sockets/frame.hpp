// The unit in which a rail for messages carries bytes: a header of 64 bytes, then its payload (docs/wire.md).
//
//   kMessage  a whole message
//   kRts      a message whose payload waits at its sender
//   kCts      from the receiver of an RTS: send the payload as DATA
//   kNack     from the receiver: it refuses the payload, and why (transport/nack.hpp)
//   kData     a part of the payload
//   kBye      the last frame of its sender over this rail; the two processes have another one
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/message.hpp"
#include "transport/nack.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

enum class FrameKind : uint8_t { kMessage = 1, kRts, kCts, kNack, kData, kBye };

// The most bytes of a DATA frame, and of one write. With 256 KiB instead, an all_gather of 16 MiB between four hosts on
// two cores took 7.7 ms, not 7.0 (docs/adr/0052-carry-all-messages-over-rails-by-default.md). A longer frame holds up
// short messages for longer.
inline constexpr size_t kMostFrameData = size_t{1} << 20;
// The same for connections that the kernel paces: longer writes make bbr underestimate the link.
inline constexpr size_t kMostPacedFrameData = size_t{256} << 10;

struct FrameHeader {
  uint32_t num_bytes = 0;  // of the payload that follows
  FrameKind kind{};
  uint8_t reserved[3]{};
  uint64_t number = 0;    // RTS, CTS, NACK: the sender's number of the long message; DATA: the receiver's ticket
  uint64_t position = 0;  // RTS: the length of the payload; CTS: the receiver's ticket; DATA: the offset
  MessageHeader message;  // kMessage and RTS: the message's own
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);

constexpr size_t most_bytes_of(FrameKind kind) noexcept {
  switch (kind) {
    case FrameKind::kMessage:
      return Transport::kLargestEager;
    case FrameKind::kNack:
      return nack::Encoded::kMostBytes;
    case FrameKind::kData:
      return kMostFrameData;
    default:
      return 0;
  }
}

// Returns whether a transport of ours may send such a header, whatever was sent before it.
constexpr bool is_valid(const FrameHeader& header) noexcept {
  if (header.kind < FrameKind::kMessage || header.kind > FrameKind::kBye) return false;
  if (header.num_bytes > most_bytes_of(header.kind)) return false;
  if (header.kind == FrameKind::kRts) return header.position != 0;
  return header.kind != FrameKind::kData || header.num_bytes != 0;
}

}  // namespace axon::transport
