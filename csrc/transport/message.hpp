// The wire format: the header that precedes every message. docs/wire.md gives every byte; tests/cpp pins them.
//
// The last 16 bytes are the fingerprint of the operation that the message belongs to. Both ends compare it on every
// message. A rank that called a different operation is thus named before its data is used, at the cost of no extra
// message.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/data_type.hpp"

namespace axon::transport {

// Must be incremented with any change to this file. Peers compare it when they connect.
inline constexpr uint32_t kWireVersion = 12;

enum class OperationKind : uint8_t {
  kBroadcast = 1,
  kAllReduce = 2,
  kReduce = 3,
  kAllGather = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kAllToAll = 8,
  kBarrier = 9,
  kPointToPoint = 10,
  // Calls between runtimes: the key addresses a runtime instead of a group.
  kInvoke = 16,
  kTell = 17,
  kInvokePayload = 18,
  kReply = 19,
  kFailure = 20,
  kReplyPayload = 21,
  kCancel = 22,
  kClose = 23,
  kWithdrawn = 24,
  // Long messages in fragments, between transports: the key is the name of the addressed transport.
  kRts = 32,
  kCts = 33,
  kNack = 34,
  kFragment = 35,
  // Control messages between engines, outside any operation's sequence.
  kFailureNotice = 64,
  kProgressQuery = 65,
  kProgressReply = 66,
  kDeparture = 67,
  kCredit = 68,  // between inboxes; see flow_control.hpp
};

const char* name_of(OperationKind kind) noexcept;

inline bool is_of_a_call(OperationKind kind) noexcept {
  return kind >= OperationKind::kInvoke && kind <= OperationKind::kWithdrawn;
}

inline bool is_of_fragments(OperationKind kind) noexcept {
  return kind >= OperationKind::kRts && kind <= OperationKind::kFragment;
}

struct Fingerprint {
  OperationKind operation{};
  DataType dtype{};
  Reduction reduction{};
  uint8_t algorithm = 0;
  int32_t root = -1;  // −1 where the operation has none
  // The element count on which ranks must agree: the total for collectives, 0 where sizes may differ. In a message of
  // an all_to_all it is the count that the sender expects from the receiver.
  uint64_t num_elements = 0;

  // Compares all bytes at once instead of member by member.
  friend bool operator==(const Fingerprint& left, const Fingerprint& right) noexcept {
    return std::memcmp(&left, &right, sizeof left) == 0;
  }
};
static_assert(std::has_unique_object_representations_v<Fingerprint>);

// Returns whether both fingerprints belong to the same call. The counts that ranks of an all_to_all send to each other
// may differ.
inline bool is_same_call(const Fingerprint& left, const Fingerprint& right) noexcept {
  if (left == right) [[likely]]
    return true;
  Fingerprint alike = right;
  alike.num_elements = left.num_elements;
  return left.operation == OperationKind::kAllToAll && left == alike;
}

struct MessageHeader {
  uint64_t key = 0;          // the destination's key in that group, from its peer address, which only members read
  uint32_t source = 0;       // rank in that group
  uint32_t destination = 0;  // rank in that group
  // Collectives: the group's operation count; point-to-point: the count from source to destination.
  uint32_t sequence = 0;
  uint32_t slot = 0;  // collectives: index of the message in the operation; point-to-point: the tag
  Fingerprint fingerprint;
};

static_assert(sizeof(MessageHeader) == 40 && std::is_trivially_copyable_v<MessageHeader>);

}  // namespace axon::transport
