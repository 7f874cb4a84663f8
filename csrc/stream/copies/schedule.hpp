// How a rank's part of an operation that copy engines move is enqueued: a pure function of the messages' lengths.
//
// An operation has one round of messages, or two: of an all_reduce, the second sends on what has been folded of the
// first. What a peer sends goes into its *region* of the receiver's workspace, of each round one; messages that are
// longer go in turns, each behind a meeting of all ranks, by which the regions are free again.
//
//   of a turn, one round     meet │ push all pieces │ take all pieces
//   two rounds               meet │ push all pieces │ take one, push it on; take the next, push it on; … │ take all
//
// Order: nothing is pushed that waits for a peer, and all that a peer may wait for is enqueued before this rank waits
// itself. So ranks do not wait in a circle even where all streams of a device share one queue, or where each launch
// blocks the host.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "device/pieces.hpp"

namespace axon {

inline constexpr uint32_t kNumRounds = 2;

// The lengths of messages, by rank; the own ones are 0. What one rank sends another receives.
struct Round {
  std::array<uint64_t, kMaxTeamRanks> sends{};
  std::array<uint64_t, kMaxTeamRanks> receives{};
};

// Where messages go in the ranks' workspaces; the same on all of them.
struct Regions {
  int num_ranks = 0;
  uint64_t num_bytes = 0;  // of each

  // With at most so much of a rank's memory; empty ones where that is not worth while.
  static Regions fit(int num_ranks, uint32_t num_rounds, uint64_t most_bytes) noexcept;

  // In the receiver's workspace.
  uint64_t begin(int receiver, int sender, uint32_t round) const noexcept {
    const int peer = sender < receiver ? sender : sender - 1;
    return (round * static_cast<uint64_t>(num_ranks - 1) + static_cast<uint64_t>(peer)) * num_bytes;
  }
};

enum class Act : uint8_t { kMeet, kPush, kTake };

struct Step {
  Act act{};
  uint64_t begin_of_turn = 0;  // in each message
  uint32_t round = 0;
  // kPush: one piece, to a peer. Of the second round it comes behind the taking before it.
  int peer = 0;
  uint32_t number = 0;
  Piece piece{};  // of the turn's part of the message
  // kTake: these pieces of all messages.
  uint32_t first_piece = 0;
  uint32_t end_of_pieces = kMostPieces;
};

class Schedule {
 public:
  Schedule(int rank, const Regions& regions, uint64_t shortest_piece, std::span<const Round> rounds) noexcept
      : rank_(rank), regions_(regions), shortest_piece_(shortest_piece), rounds_(rounds) {}

  // The same number on all ranks that know the longest message of all.
  uint32_t num_turns(uint64_t longest_message) const noexcept {
    return static_cast<uint32_t>((longest_message + regions_.num_bytes - 1) / regions_.num_bytes);
  }
  // A turn's part of a message.
  uint64_t part(uint64_t num_bytes, uint64_t begin_of_turn) const noexcept {
    return std::min(num_bytes - std::min(num_bytes, begin_of_turn), regions_.num_bytes);
  }

  // visit(step), which returns a Status, in the order of the host; until one fails.
  template <typename Visit>
  Status for_each(uint32_t num_turns, Visit visit) const {
    for (uint64_t turn = 0; turn < num_turns; ++turn) {
      const uint64_t begin = turn * regions_.num_bytes;
      AXON_TRY(visit(Step{.act = Act::kMeet, .begin_of_turn = begin}));
      for (uint32_t number = 0; number < kMostPieces; ++number) AXON_TRY(push(begin, 0, number, visit));
      if (rounds_.size() > 1) AXON_TRY(send_on(begin, visit));
      const auto last = static_cast<uint32_t>(rounds_.size() - 1);
      AXON_TRY(visit(Step{.act = Act::kTake, .begin_of_turn = begin, .round = last}));
    }
    return Status();
  }

 private:
  // To all peers; at a time every rank sends to another.
  template <typename Visit>
  Status push(uint64_t begin_of_turn, uint32_t round, uint32_t number, Visit& visit) const {
    for (int distance = 1; distance < regions_.num_ranks; ++distance) {
      const int peer = (rank_ + distance) % regions_.num_ranks;
      const uint64_t num_bytes = part(rounds_[round].sends[static_cast<size_t>(peer)], begin_of_turn);
      const Piece piece = Cut::of(num_bytes, shortest_piece_).piece(number);
      if (piece.num_bytes == 0) continue;
      AXON_TRY(visit(Step{.act = Act::kPush,
                          .begin_of_turn = begin_of_turn,
                          .round = round,
                          .peer = peer,
                          .number = number,
                          .piece = piece}));
    }
    return Status();
  }

  template <typename Visit>
  Status send_on(uint64_t begin_of_turn, Visit& visit) const {
    uint64_t longest = 0;
    for (const uint64_t num_bytes : rounds_[0].receives) longest = std::max(longest, part(num_bytes, begin_of_turn));
    const uint32_t num_pieces = Cut::of(longest, shortest_piece_).num_pieces();
    for (uint32_t number = 0; number < num_pieces; ++number) {
      AXON_TRY(visit(
          Step{.act = Act::kTake, .begin_of_turn = begin_of_turn, .first_piece = number, .end_of_pieces = number + 1}));
      AXON_TRY(push(begin_of_turn, 1, number, visit));
    }
    return Status();
  }

  const int rank_;
  const Regions regions_;
  const uint64_t shortest_piece_;
  const std::span<const Round> rounds_;
};

}  // namespace axon
