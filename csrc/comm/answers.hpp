// What the ranks of a group answer when they are asked how far they are: whom the error of an overdue operation names.
//
//   const Clock::time_point asked_at = Clock::now();   // then ask; record() each answer
//   if (answers.all_since(asked_at)) … answers.missing(sequence, asked_at)
//
// Several may ask at a time: an answer counts for everybody who asked before it came. Used only by the holder of the
// progress token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/progress.hpp"
#include "transport/message.hpp"

namespace axon {

class Answers {
 public:
  explicit Answers(int num_ranks) : latest_(static_cast<size_t>(num_ranks)) {}

  // Rank `rank` says, now, that the collective `kind` at `sequence` is the latest it has entered; 0: none yet.
  void record(int rank, uint32_t sequence, OperationKind kind) noexcept {
    latest_[static_cast<size_t>(rank)] = {Clock::now(), sequence, kind};
  }

  bool all_since(Clock::time_point asked_at) const noexcept;

  // "rank 1 (does not answer), rank 3 (last entered #6, barrier)": those that have not entered the collective.
  std::string missing(uint32_t sequence, Clock::time_point asked_at) const;

 private:
  struct Answer {
    Clock::time_point at{};
    uint32_t sequence = 0;
    OperationKind kind{};
  };

  std::vector<Answer> latest_;  // by rank
};

}  // namespace axon
