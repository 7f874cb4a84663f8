// The ranks' answers to progress queries; the error of an overdue operation names ranks by them.
//
//   const Clock::time_point asked_at = Clock::now();
//   answers.note_asked(rank, asked_at);                  // for each rank to which this query is sent
//   answers.record(rank, progress);                      // each answer
//   if (answers.all_since(asked_at)) text = answers.findings(sequence, asked_at);
//
// Several queries may be pending: an answer counts for each query that was sent before the answer arrived. For a query,
// only the ranks count to which it was sent, and after eight later ones all to which these were sent.
//
// Owned by ProgressQueries. Progress owner only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/chunked_table.hpp"
#include "engine/progress.hpp"

namespace axon::engine {

class Answers {
 public:
  explicit Answers(int num_ranks) : latest_(static_cast<size_t>(num_ranks)) {}

  struct Progress {
    uint32_t sequence = 0;      // of the collective that the rank entered last; 0: none yet
    uint32_t num_launched = 0;  // collectives that its device hook has begun, without captured ones
    std::string calls;          // describes its latest calls
  };

  void note_asked(int rank, sync::Clock::time_point asked_at) noexcept {
    Answer& latest = latest_.writable(static_cast<size_t>(rank));
    latest.asked_at[latest.num_asked++ % latest.asked_at.size()] = asked_at;
  }
  // Records an answer that arrives now.
  void record(int rank, Progress progress) {
    Answer& latest = latest_.writable(static_cast<size_t>(rank));
    latest.at = sync::Clock::now();
    latest.progress = std::move(progress);
  }
  const Progress& of(int rank) const noexcept { return latest_[static_cast<size_t>(rank)].progress; }

  bool all_since(sync::Clock::time_point asked_at) const noexcept;

  // Returns the ranks that have not entered the collective, of those that were asked, judged by the answers since
  // `asked_at`.
  std::vector<int> missing(uint32_t sequence, sync::Clock::time_point asked_at) const;

  // Returns a rank that has not entered the collective, but has launched more than `num_launched` on its device.
  std::optional<int> find_ahead_on_device(uint32_t sequence, uint32_t num_launched,
                                          sync::Clock::time_point asked_at) const noexcept;

  // "Not entered by: rank 1 (does not answer), rank 3 (last entered barrier #6, 2.1 s ago). Entered by: rank 0 (…)."
  // If not all ranks were asked, the text begins with their number.
  std::string findings(uint32_t sequence, sync::Clock::time_point asked_at) const;

  // "Last entered: rank 0 (barrier #6, 2.1 s ago), rank 1 (does not answer)."
  std::string all(sync::Clock::time_point asked_at) const;

 private:
  struct Answer {
    sync::Clock::time_point at{};
    Progress progress;
    std::array<sync::Clock::time_point, 8> asked_at{};  // the latest queries
    uint32_t num_asked = 0;

    bool is_due(sync::Clock::time_point query) const noexcept {
      const bool is_forgotten = num_asked > asked_at.size() && query < std::ranges::min(asked_at);
      return is_forgotten || std::ranges::find(asked_at, query) != asked_at.end();
    }
    bool has_arrived(sync::Clock::time_point asked_at) const noexcept { return at >= asked_at; }
    bool has_entered(uint32_t of, sync::Clock::time_point asked_at) const noexcept {
      return has_arrived(asked_at) && is_at_least(progress.sequence, of);
    }
  };

  // Sequence numbers wrap.
  static bool is_at_least(uint32_t number, uint32_t least) noexcept {
    return static_cast<int32_t>(number - least) >= 0;
  }

  std::string asked(sync::Clock::time_point asked_at) const;
  // Returns "Title: rank 0 (…), rank 4 (…), and 12 more." for the answers that satisfy the predicate; empty if none do.
  template <typename Predicate>
  std::string list(const char* title, sync::Clock::time_point asked_at, Predicate takes) const;

  ChunkedTable<Answer> latest_;  // by rank: of those that were asked or have answered
};

}  // namespace axon::engine
