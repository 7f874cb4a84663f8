// An operation as copy engines and the kernels of device/take_pieces.hpp do it.
//
//   moves            one round: each message into its receiver's workspace, from there to its tensor
//   reduce_scatter   one round: rank r gets block r of all ranks, and folds it
//   all_reduce       two rounds: rank r folds shard r of all tensors, then sends the total to all
//   broadcast        of more than two ranks, two rounds: the root sends each other rank a shard, which that sends on
#pragma once

#include <array>
#include <optional>

#include "comm/operation.hpp"
#include "device/line_collectives.hpp"
#include "device/take_pieces.hpp"
#include "stream/copies/schedule.hpp"

namespace axon {

struct CopyCall {
  // In front: what all ranks compare, and the messages of an all_to_all that are too short for copies.
  LineExchange meeting;
  uint32_t num_rounds = 1;
  std::array<Round, kNumRounds> rounds{};
  // By round and peer: where messages come from, and where they belong.
  std::array<std::array<const std::byte*, kMaxTeamRanks>, kNumRounds> sources{};
  std::array<std::array<std::byte*, kMaxTeamRanks>, kNumRounds> targets{};
  // What this rank itself adds to the first round's: a message to itself, or its part of what is folded.
  IncomingMessage own;
  std::optional<PieceFold> fold;  // what the first round is for, if not to be copied to the targets
  uint64_t longest = 0;           // message of all ranks, as all of them know it; …
  bool takes_turns = true;        // … but of an all_to_all, where all that is copied fits into the regions
};

// Which messages of an all_to_all go by copies: no rank knows the others', so each pair agrees by what it knows.
struct MessageLimits {
  uint64_t least = 0;
  uint64_t most = 0;

  bool hold(uint64_t num_bytes) const noexcept { return num_bytes >= least && num_bytes <= most; }
};

// Of a rank.
CopyCall copy_call_of(const Operation& operation, int rank, int num_ranks, MessageLimits of_all_to_all);

// How many rounds that has.
uint32_t rounds_of(OperationKind kind, int num_ranks) noexcept;

}  // namespace axon
