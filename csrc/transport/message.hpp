// The wire format: the header of 40 bytes that precedes every message. docs/wire.md gives every byte; tests/cpp pins
// them.
//
// Every header begins with the receiver's key and the message's kind. The rest depends on the kind's family:
//
//   family        header             messages
//   kOperation    OperationHeader    of collectives, sends and receives
//   kControl      ControlHeader      between engines: failures, departures, progress, and digests of results
//   kCredit       CreditHeader       between inboxes: how many messages a rank may send (messaging/flow_control.hpp)
//   kCall         CallHeader         between runtimes
//   kOneSided     OneSidedHeader     between runtimes: reads and writes of each other's memory
//   kRendezvous   RendezvousHeader   between transports: a long message over rails (transport/rails)
//
//   const MessageHeader header = CallHeader{.key = key, .kind = MessageKind::kCancel, .number = number};
//   if (family_of(header.kind) == MessageFamily::kCall) cancel(header.as<CallHeader>().number);
#pragma once

#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/status.hpp"
#include "transport/fingerprint.hpp"

namespace axon::transport {

// Must be incremented with any change to this file or to fingerprint.hpp. Peers compare it when they connect.
inline constexpr uint32_t kWireVersion = 21;

// The kind of an operation's message is the operation's OperationKind, from 1 to 10.
enum class MessageKind : uint8_t {
  kInvoke = 16,
  kTell = 17,
  kInvokePayload = 18,
  kReply = 19,
  kFailure = 20,
  kReplyPayload = 21,
  kCancel = 22,
  kClose = 23,
  kWithdrawn = 24,
  kRts = 32,
  kCts = 33,
  kNack = 34,
  kAck = 35,
  kOpenRegion = 40,
  kGrant = 41,
  kWrite = 42,
  kScatter = 43,
  kRead = 44,
  kGather = 45,
  kData = 46,
  kDone = 47,
  kNotify = 48,
  kForget = 49,
  kRelease = 50,
  kRevoke = 51,
  kRevoked = 52,
  kFailureNotice = 64,
  kProgressQuery = 65,
  kProgressReply = 66,
  kDeparture = 67,
  kCredit = 68,
  kLeave = 69,
  kResultDigests = 70,
  kResultQuery = 71,
  kResultReply = 72,
  kContact = 73,
};

enum class MessageFamily : uint8_t { kUnknown, kOperation, kControl, kCredit, kCall, kRendezvous, kOneSided };

constexpr MessageFamily family_of(MessageKind kind) noexcept {
  if (static_cast<uint8_t>(kind) - 1U < static_cast<uint8_t>(OperationKind::kPointToPoint)) [[likely]]
    return MessageFamily::kOperation;
  switch (kind) {
    case MessageKind::kInvoke:
    case MessageKind::kTell:
    case MessageKind::kInvokePayload:
    case MessageKind::kReply:
    case MessageKind::kFailure:
    case MessageKind::kReplyPayload:
    case MessageKind::kCancel:
    case MessageKind::kClose:
    case MessageKind::kWithdrawn:
      return MessageFamily::kCall;
    case MessageKind::kRts:
    case MessageKind::kCts:
    case MessageKind::kNack:
    case MessageKind::kAck:
      return MessageFamily::kRendezvous;
    case MessageKind::kOpenRegion:
    case MessageKind::kGrant:
    case MessageKind::kWrite:
    case MessageKind::kScatter:
    case MessageKind::kRead:
    case MessageKind::kGather:
    case MessageKind::kData:
    case MessageKind::kDone:
    case MessageKind::kNotify:
    case MessageKind::kForget:
    case MessageKind::kRelease:
    case MessageKind::kRevoke:
    case MessageKind::kRevoked:
      return MessageFamily::kOneSided;
    case MessageKind::kFailureNotice:
    case MessageKind::kProgressQuery:
    case MessageKind::kProgressReply:
    case MessageKind::kDeparture:
    case MessageKind::kResultDigests:
    case MessageKind::kResultQuery:
    case MessageKind::kResultReply:
    case MessageKind::kContact:
      return MessageFamily::kControl;
    case MessageKind::kCredit:
    case MessageKind::kLeave:
      return MessageFamily::kCredit;
  }
  return MessageFamily::kUnknown;
}

// A header of any family, which every typed header converts to.
struct MessageHeader {
  uint64_t key = 0;  // the addressed inbox's, connection's or transport's; known only to its possible senders
  MessageKind kind{};
  std::array<std::byte, 31> rest{};  // depends on the family

  MessageHeader() = default;
  template <typename Header>
    requires std::is_same_v<const MessageFamily, decltype(Header::kFamily)>
  MessageHeader(const Header& header) noexcept : MessageHeader(std::bit_cast<MessageHeader>(header)) {}

  // The caller has checked the family.
  template <typename Header>
  Header as() const noexcept {
    assert(family_of(kind) == Header::kFamily);
    return std::bit_cast<Header>(*this);
  }
};

struct OperationHeader {
  static constexpr MessageFamily kFamily = MessageFamily::kOperation;

  uint64_t key = 0;  // the destination's key in that group, from its peer address, which only members read
  Fingerprint fingerprint;
  uint32_t source = 0;       // rank in that group
  uint32_t destination = 0;  // rank in that group
  // Collectives: the group's operation count, or the number of a replay (engine/operation.hpp); point-to-point: the
  // count from source to destination.
  uint32_t sequence = 0;
  uint32_t slot = 0;  // collectives: index of the message in the operation; point-to-point: the tag
};

struct ControlHeader {
  static constexpr MessageFamily kFamily = MessageFamily::kControl;

  uint64_t key = 0;  // as in an OperationHeader
  MessageKind kind{};
  ErrorCode error = ErrorCode::kOk;  // of a failure notice or departure; ok: its rank has nothing in flight
  uint16_t reserved = 0;
  uint32_t latest_sequence = 0;  // of the latest collective that the sender, or the origin of a notice, has started
  uint64_t num_sent = 0;         // of a departure: all point-to-point messages from the sender to this rank
  uint32_t source = 0;           // rank in that group
  uint32_t destination = 0;      // rank in that group
  uint32_t num_launched = 0;     // of a progress reply: collectives that the sender's GPU side has launched
  uint32_t origin = 0;  // of a failure notice or departure: the rank that reports it. The sender may pass it on
};

// kCredit grants its receiver further messages and bytes. kLeave says that its sender no longer receives any.
struct CreditHeader {
  static constexpr MessageFamily kFamily = MessageFamily::kCredit;

  uint64_t key = 0;  // as in an OperationHeader
  MessageKind kind{};
  std::array<uint8_t, 3> reserved{};
  uint32_t num_messages = 0;
  uint64_t num_bytes = 0;
  uint32_t source = 0;       // rank in that group
  uint32_t destination = 0;  // rank in that group
  uint32_t num_sent = 0;     // of a kLeave: all point-to-point messages from the sender to this rank
  uint32_t reserved_too = 0;
};

struct CallHeader {
  static constexpr MessageFamily kFamily = MessageFamily::kCall;

  uint64_t key = 0;  // the receiving end's key of the connection
  MessageKind kind{};
  std::array<uint8_t, 3> reserved{};
  uint32_t number = 0;  // of the call
  uint32_t tensor = 0;  // of a payload frame: the index of its tensor
  // An invoke that its caller cannot withdraw carries its sending time, in milliseconds of the sender's clock, which
  // wrap. The caller waits for remaining_ms from then on; 0 means that this is not given.
  uint32_t sent_at_ms = 0;
  uint32_t remaining_ms = 0;
  uint32_t reserved_too = 0;
  // A close carries the number of answers that its sender has given since the start, or 0 if calls were left.
  uint64_t num_answers = 0;
};

struct RendezvousHeader {
  static constexpr MessageFamily kFamily = MessageFamily::kRendezvous;

  uint64_t key = 0;  // the name of the addressed transport
  MessageKind kind{};
  std::array<uint8_t, 7> reserved{};
  uint64_t number = 0;  // the sender's, of the long message
  uint64_t ticket = 0;  // of a CTS: the receiver's, of the long message
  uint64_t reserved_too = 0;
};

struct OneSidedHeader {
  static constexpr MessageFamily kFamily = MessageFamily::kOneSided;

  uint64_t key = 0;  // as in a CallHeader
  MessageKind kind{};
  ErrorCode error = ErrorCode::kOk;  // of a kDone
  DataType dtype{};                  // of the bytes of a read or write, and of its answer; says how to compress them
  uint8_t reserved = 0;
  uint32_t number = 0;    // of the request: its slot, and the number of uses of the slot
  uint32_t grant = 0;     // of the memory; 0 where the payload has a table
  uint32_t transfer = 0;  // to whose end a notification refers; 0: none
  uint64_t offset = 0;    // in the granted bytes. Of a kForget: 1 if the transfer's kNotify was sent, otherwise 0
  // The bytes of a read or write. Of a kNotify or kForget: the number of writes of the transfer.
  uint64_t num_bytes = 0;
};

template <typename Header>
inline constexpr bool is_header =
    sizeof(Header) == 40 && std::is_trivially_copyable_v<Header> && std::has_unique_object_representations_v<Header>;
template <typename Header>
inline constexpr bool begins_as_all =
    offsetof(Header, key) == offsetof(MessageHeader, key) && offsetof(Header, kind) == offsetof(MessageHeader, kind);

static_assert(is_header<MessageHeader>);
static_assert(is_header<OperationHeader> && offsetof(OperationHeader, key) == offsetof(MessageHeader, key) &&
              offsetof(OperationHeader, fingerprint) + offsetof(Fingerprint, operation) ==
                  offsetof(MessageHeader, kind));
static_assert(is_header<ControlHeader> && begins_as_all<ControlHeader>);
static_assert(is_header<CreditHeader> && begins_as_all<CreditHeader>);
static_assert(is_header<CallHeader> && begins_as_all<CallHeader>);
static_assert(is_header<RendezvousHeader> && begins_as_all<RendezvousHeader>);
static_assert(is_header<OneSidedHeader> && begins_as_all<OneSidedHeader>);

}  // namespace axon::transport
