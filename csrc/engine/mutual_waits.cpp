#include "engine/mutual_waits.hpp"

#include <algorithm>

#include "base/thread_number.hpp"

namespace axon::engine {

// Ranks usually follow within milliseconds.
static constexpr std::chrono::seconds kFirstQuery{1};
// Another thread may launch the kernel that the other rank waits for, until a suspicion is confirmed.
static constexpr std::chrono::seconds kConfirmation{3};

void MutualWaits::note_launch() noexcept {
  queries_.note_running();
  const uint32_t self = thread_number();
  for (std::atomic<uint32_t>& launcher : launchers_) {
    const uint32_t known = launcher.load(std::memory_order_relaxed);
    if (known == self) return;
    if (known == 0) return launcher.store(self, std::memory_order_relaxed);  // publishes no other data
  }
}

bool MutualWaits::has_launched(uint32_t thread) const noexcept {
  return thread != 0 && std::ranges::any_of(launchers_, [&](const std::atomic<uint32_t>& launcher) {
           return launcher.load(std::memory_order_relaxed) == thread;
         });
}

void MutualWaits::begin(const Operation& waiting) noexcept {
  sequence_ = waiting.sequence();
  next_query_ = waiting.called_at() + kFirstQuery;
  interval_ = kFirstQuery;
  asked_at_.reset();
  suspicion_.reset();
}

std::optional<int> MutualWaits::check(Operation& waiting, sync::Clock::time_point now) noexcept {
  if (waiting.sequence() != sequence_) begin(waiting);
  if (now < next_query_) return std::nullopt;
  if (!asked_at_) asked_at_ = queries_.ask(waiting.exchange().ranks_awaited());
  const sync::Clock::time_point asked_at = *asked_at_;
  if (!queries_.answers().all_since(asked_at) && !ProgressQueries::have_expired(asked_at)) return std::nullopt;
  asked_at_.reset();
  const std::optional<Finding> found = find(asked_at);
  const bool is_new = found && found != suspicion_;
  suspicion_ = found;
  if (!is_new) interval_ *= 2;
  next_query_ = now + (is_new ? kConfirmation : interval_);
  return found && !is_new ? std::optional(found->rank) : std::nullopt;
}

std::optional<MutualWaits::Finding> MutualWaits::find(sync::Clock::time_point asked_at) const noexcept {
  const uint32_t here = queries_.num_launched();
  const std::optional<int> rank = queries_.answers().find_ahead_on_device(sequence_, here, asked_at);
  if (!rank) return std::nullopt;
  return Finding{.rank = *rank, .num_launched = queries_.answers().of(*rank).num_launched, .num_launched_here = here};
}

}  // namespace axon::engine
