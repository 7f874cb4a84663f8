// Ranks whose copy engines and kernels are played on the host: each takes the steps of its plan, on tensors and
// workspaces of its own, as the queues of its device would.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "stream/copies/copy_plan.hpp"

namespace axon::testing {

// How a device's queues are shared: one for all streams, which a wait blocks, or one each.
enum class Queues { kOne, kOneAStream };

class Simulation {
 public:
  static constexpr uint64_t kShortestPiece = 256;

  Simulation(int num_ranks, uint64_t workspace_bytes, Queues queues)
      : num_ranks_(num_ranks), queues_(queues), ranks_(static_cast<size_t>(num_ranks)) {
    for (Rank& rank : ranks_) {
      rank.workspace.resize(workspace_bytes);
      rank.flags.resize(WorkspacePlaces::kNumFlags);
    }
    places_ = {.num_ranks = num_ranks, .num_bytes = workspace_bytes};
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      places_.parts[rank] = ranks_[rank].workspace.data();
      places_.flags[rank] = ranks_[rank].flags.data();
    }
  }

  // Every rank's call, of int32; true: all came to their end.
  bool run(const std::function<CopyCall(int rank)>& call_of, std::mt19937& random) {
    for (int rank = 0; rank < num_ranks_; ++rank) prepare(rank, call_of(rank));
    size_t num_left = 0;
    for (const Rank& rank : ranks_) num_left += rank.steps.size();
    while (num_left > 0) {
      const auto ready = find_ready();
      if (ready.empty()) return false;
      const auto [rank, index] = ready[random() % ready.size()];
      take_step(rank, index);
      --num_left;
    }
    return true;
  }

 private:
  struct Rank {
    std::vector<std::byte> workspace;
    std::vector<uint32_t> flags;
    CopyCall call;
    std::unique_ptr<CopyPlan> plan;
    std::vector<Step> steps;
    std::vector<bool> is_done;
    uint32_t num_entered = 0;  // meetings, over all operations
    uint32_t epoch = 0;
  };
  using Place = std::pair<int, size_t>;

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  void prepare(int number, CopyCall call) {
    Rank& rank = at(number);
    rank.call = std::move(call);
    rank.plan = std::make_unique<CopyPlan>(number, rank.call, places_, kShortestPiece);
    rank.steps.clear();
    const Status planned = rank.plan->for_each([&](const Step& step) {
      rank.steps.push_back(step);
      return Status();
    });
    EXPECT_TRUE(planned.ok());
    rank.is_done.assign(rank.steps.size(), false);
  }

  std::vector<Place> find_ready() {
    std::vector<Place> ready;
    for (int number = 0; number < num_ranks_; ++number) {
      const Rank& rank = at(number);
      for (size_t index = 0; index < rank.steps.size(); ++index) {
        if (rank.is_done[index]) continue;
        if (may_start(rank, index) && is_over(number, index)) ready.emplace_back(number, index);
        if (queues_ == Queues::kOne) break;
      }
    }
    return ready;
  }

  // By the order of the streams: pushes are on two of each round, all else is on the caller's.
  static bool may_start(const Rank& rank, size_t index) {
    const Step& step = rank.steps[index];
    for (size_t earlier = 0; earlier < index; ++earlier) {
      if (rank.is_done[earlier]) continue;
      const Step& other = rank.steps[earlier];
      const bool both_push = step.act == Act::kPush && other.act == Act::kPush;
      const bool same_stream = both_push && step.round == other.round && step.number % 2 == other.number % 2;
      const bool is_joined = step.act == Act::kMeet;
      const bool is_forked = step.act == Act::kPush && (other.act == Act::kMeet || (step.round > 0 && !both_push));
      const bool is_callers = step.act != Act::kPush && other.act != Act::kPush;
      if (same_stream || is_joined || is_forked || is_callers) return false;
    }
    return true;
  }

  // Whether what the step waits for has come; a meeting is entered by the look.
  bool is_over(int number, size_t index) {
    Rank& rank = at(number);
    const Step& step = rank.steps[index];
    if (step.act == Act::kPush) return true;
    if (step.act == Act::kMeet) {
      rank.num_entered = rank.epoch + 1;
      return std::ranges::all_of(ranks_, [&](const Rank& each) { return each.num_entered > rank.epoch; });
    }
    const PieceTaking taking = rank.plan->taking(step);
    for (const IncomingMessage& message : taking.messages) {
      for (uint32_t piece = taking.first_piece; piece < taking.end_of_pieces; ++piece) {
        const bool is_empty = Cut::of(message.num_bytes, kShortestPiece).piece(piece).num_bytes == 0;
        if (!is_empty && message.flags != nullptr && message.flags[piece] != rank.epoch) return false;
      }
    }
    return true;
  }

  void take_step(int number, size_t index) {
    Rank& rank = at(number);
    const Step& step = rank.steps[index];
    rank.is_done[index] = true;
    if (step.act == Act::kMeet) {
      ++rank.epoch;
      move_short_messages(number);
    } else if (step.act == Act::kPush) {
      const CopyPlan::Push push = rank.plan->push(step);
      const std::byte* end = ranks_[static_cast<size_t>(step.peer)].workspace.data() + places_.num_bytes;
      EXPECT_LE(push.target + push.num_bytes, end);
      std::memcpy(push.target, push.source, push.num_bytes);
      *push.flag = rank.epoch;
    } else {
      take(*rank.plan, step);
    }
  }

  // Those that the meeting's kernel moves.
  void move_short_messages(int receiver) {
    const LineExchange& meeting = at(receiver).call.meeting;
    for (int sender = 0; sender < num_ranks_; ++sender) {
      const ReceiveBlock& block = meeting.receives[static_cast<size_t>(sender)];
      const LineExchange& theirs = at(sender).call.meeting;
      EXPECT_EQ(theirs.sends[static_cast<size_t>(receiver)].num_bytes, block.num_bytes);
      EXPECT_EQ(theirs.sends_apart[static_cast<size_t>(receiver)], meeting.receives_apart[static_cast<size_t>(sender)]);
      if (block.num_bytes != 0) {
        std::memcpy(block.data, theirs.sends[static_cast<size_t>(receiver)].data, block.num_bytes);
      }
    }
  }

  void take(const CopyPlan& plan, const Step& step) const {
    const PieceTaking taking = plan.taking(step);
    for (uint32_t number = taking.first_piece; number < taking.end_of_pieces; ++number) {
      if (plan.folds(step)) {
        sum(taking, plan.fold(step).output, number);
        continue;
      }
      for (const IncomingMessage& message : taking.messages) {
        const Piece piece = Cut::of(message.num_bytes, kShortestPiece).piece(number);
        if (piece.num_bytes == 0) continue;
        std::memcpy(message.target + piece.begin, message.data + piece.begin, piece.num_bytes);
      }
    }
  }

  void sum(const PieceTaking& taking, std::byte* output, uint32_t number) const {
    const Piece piece = Cut::of(taking.messages[0].num_bytes, kShortestPiece).piece(number);
    for (uint64_t at = piece.begin; at < piece.begin + piece.num_bytes; at += sizeof(int32_t)) {
      int32_t total = 0;
      for (int rank = 0; rank < num_ranks_; ++rank) {
        int32_t word = 0;
        std::memcpy(&word, taking.messages[static_cast<size_t>(rank)].data + at, sizeof word);
        total += word;
      }
      std::memcpy(output + at, &total, sizeof total);
    }
  }

  const int num_ranks_;
  const Queues queues_;
  std::vector<Rank> ranks_;
  WorkspacePlaces places_;
};

}  // namespace axon::testing
