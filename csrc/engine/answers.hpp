// What the ranks of a group answer when they are asked how far they are: whom the error of an overdue operation names.
//
//   const Clock::time_point asked_at = Clock::now();   // then ask; record() each answer
//   if (answers.all_since(asked_at)) … answers.findings(sequence, asked_at)
//
// Several may ask at a time: an answer counts for everybody who asked before it came. Used only by the progress
// owner.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/progress.hpp"

namespace axon::engine {

class Answers {
 public:
  explicit Answers(int num_ranks) : latest_(static_cast<size_t>(num_ranks)) {}

  // Rank `rank` says, now, that the collective at `sequence` is the latest it has entered (0: none yet), and describes
  // its latest calls.
  void record(int rank, uint32_t sequence, std::string calls) {
    latest_[static_cast<size_t>(rank)] = {sync::Clock::now(), sequence, std::move(calls)};
  }

  bool all_since(sync::Clock::time_point asked_at) const noexcept;

  // Those that have not entered it, as far as the answers tell.
  std::vector<int> missing(uint32_t sequence, sync::Clock::time_point asked_at) const;

  // "Not entered by: rank 1 (does not answer), rank 3 (last entered barrier #6, 2.1 s ago). Entered by: rank 0 (…)."
  std::string findings(uint32_t sequence, sync::Clock::time_point asked_at) const;

  // "Last entered: rank 0 (barrier #6, 2.1 s ago), rank 1 (does not answer)."
  std::string all(sync::Clock::time_point asked_at) const;

 private:
  struct Answer {
    sync::Clock::time_point at{};
    uint32_t sequence = 0;
    std::string calls;

    bool has_come(sync::Clock::time_point asked_at) const noexcept { return at >= asked_at; }
    bool has_entered(uint32_t of, sync::Clock::time_point asked_at) const noexcept {
      return has_come(asked_at) && static_cast<int32_t>(sequence - of) >= 0;  // sequence numbers wrap
    }
  };

  // "Title: rank 0 (…), rank 4 (…), and 12 more.", of those that the predicate takes; empty if it takes none.
  template <typename Predicate>
  std::string list(const char* title, sync::Clock::time_point asked_at, Predicate takes) const;

  std::vector<Answer> latest_;  // by rank
};

}  // namespace axon::engine
