// The steps of one rank's part of an operation, with their addresses: a pure function of these.
//
//   const CopyPlan plan(rank, call, places, shortest_piece);
//   AXON_TRY(plan.for_each([&](const Step& step) { … plan.push(step) … plan.taking(step) … plan.fold(step) … }));
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "stream/copies/copy_call.hpp"
#include "stream/copies/schedule.hpp"

namespace axon {

// The ranks' workspaces as one of them sees them.
struct WorkspacePlaces {
  static constexpr uint32_t kNumFlags = kNumRounds * kMaxTeamRanks * kMostPieces;

  int num_ranks = 0;
  uint64_t num_bytes = 0;  // of each
  std::array<std::byte*, kMaxTeamRanks> parts{};
  std::array<uint32_t*, kMaxTeamRanks> flags{};

  // Where a sender's are, of a round, at the receiver.
  uint32_t* flags_of(int receiver, uint32_t round, int sender) const noexcept {
    return flags[static_cast<size_t>(receiver)] + (round * kMaxTeamRanks + static_cast<uint32_t>(sender)) * kMostPieces;
  }
};

class CopyPlan {
 public:
  struct Push {
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    uint64_t num_bytes = 0;
    uint32_t* flag = nullptr;  // the peer's, behind it
  };

  // Both stay as long.
  CopyPlan(int rank, const CopyCall& call, const WorkspacePlaces& places, uint64_t shortest_piece) noexcept;

  template <typename Visit>
  Status for_each(Visit visit) const {
    return schedule_.for_each(call_.takes_turns ? schedule_.num_turns(call_.longest) : 1, std::move(visit));
  }

  Push push(const Step& step) const noexcept;
  bool folds(const Step& step) const noexcept { return step.round == 0 && call_.fold.has_value(); }
  PieceTaking taking(const Step& step) const noexcept;
  PieceFold fold(const Step& step) const noexcept;

 private:
  IncomingMessage incoming(const Step& step, int peer) const noexcept;
  IncomingMessage own(const Step& step) const noexcept;

  const int rank_;
  const CopyCall& call_;
  const WorkspacePlaces& places_;
  const uint64_t shortest_piece_;
  const Regions regions_;
  const Schedule schedule_;
};

}  // namespace axon
