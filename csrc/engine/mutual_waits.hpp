// Finds ranks that wait for each other in calls of different kinds. This one waits in a collective of the host engine,
// and the other one in a kernel of its device hook. Neither call sees the other: messages carry fingerprints of the
// host's collectives, and kernels compare those of kernels.
//
//   mutual_waits.note_launch();                                        // each launch, on the caller's thread
//   if (std::optional<int> rank = mutual_waits.check(*waiting, now)) fail(…);          // again and again
//
// The ranks are asked for their progress. A rank is found if it has launched kernels that this rank has not, and has
// not entered the collective in which this rank waits. Two answers in a row have to say so.
//
// Another thread of this rank could still launch the kernel: one may train, while another one gathers objects for a
// checkpoint. So only a thread that waits, and has launched kernels itself, is judged. If others have launched some,
// too, as those of autograd do, they may do so again. Then this warns, once.
//
// Owned by a group. Progress owner only, except for note_launch().
#pragma once

#include <array>
#include <atomic>
#include <optional>

#include "engine/operation.hpp"
#include "engine/progress_queries.hpp"

namespace axon::engine {

class MutualWaits {
 public:
  explicit MutualWaits(ProgressQueries& queries) noexcept : queries_(queries) {}

  // Any thread, but one at a time: this thread launches a collective of the device hook, which waits for other ranks.
  void note_launch() noexcept;
  bool has_launched(uint32_t thread) const noexcept;
  // Returns whether one thread has launched all of them.
  bool has_one_launcher() const noexcept { return launchers_[1].load(std::memory_order_relaxed) == 0; }

  // Returns a rank that waits for this one. A thread that has launched kernels waits in `waiting`.
  std::optional<int> check(Operation& waiting, sync::Clock::time_point now) noexcept;

 private:
  // A rank that waits for this one, by the answers to one query. Two queries in a row have to find the same.
  struct Finding {
    int rank = 0;
    uint32_t num_launched = 0;       // by that rank
    uint32_t num_launched_here = 0;  // by this one
    bool operator==(const Finding&) const = default;
  };

  void begin(const Operation& waiting) noexcept;
  std::optional<Finding> find(sync::Clock::time_point asked_at) const noexcept;

  ProgressQueries& queries_;
  static constexpr size_t kMostThreads = 8;                      // later ones are not judged
  std::array<std::atomic<uint32_t>, kMostThreads> launchers_{};  // their numbers, in order of their first launch

  uint32_t sequence_ = 0;  // of the collective that the rest is about
  sync::Clock::time_point next_query_{};
  sync::Clock::duration interval_{};  // until the next query, unless that has to confirm an answer; doubles
  std::optional<sync::Clock::time_point> asked_at_;  // set while answers are outstanding
  std::optional<Finding> suspicion_;                 // what the previous answers said
};

}  // namespace axon::engine
