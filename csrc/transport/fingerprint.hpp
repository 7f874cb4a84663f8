// The fingerprint of a call: its operation, and the arguments on which ranks must agree. Both ends compare it on
// every message of an operation. A rank that called a different operation is thus named before its data is used, at the
// cost of no extra message.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/data_type.hpp"

namespace axon::transport {

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
};

const char* name_of(OperationKind kind) noexcept;

struct Fingerprint {
  OperationKind operation{};
  DataType dtype{};
  Reduction reduction{};
  uint8_t algorithm = 0;
  // −1 where the operation has none. Of a later part of a long point-to-point message: its index. Of a message that a
  // CUDA graph holds: −1 − n for the n-th captured one of its direction, ranks and tag.
  int32_t root = -1;
  // The element count on which ranks must agree: the total for collectives, 0 where sizes may differ. In a message of
  // an all_to_all it is the count that the sender expects from the receiver. In a later part of a point-to-point
  // message it is the sequence number of the first part.
  uint64_t num_elements = 0;

  bool is_later_part() const noexcept { return operation == OperationKind::kPointToPoint && root >= 0; }

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

}  // namespace axon::transport
