#include "engine/progress.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/trace.hpp"

namespace axon::engine {

using namespace pace;

// A trace lacks up to this much time before the process was killed.
static constexpr milliseconds kTraceInterval{10};

Progress::Progress(Driver& driver, Doorbell& doorbell)
    : driver_(driver), doorbell_(doorbell), thread_([this] { run_in_background(); }) {}

Progress::~Progress() {
  stop();
}

void Progress::stop() noexcept {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  doorbell_.ring();
  thread_.join();
}

bool Progress::try_acquire() noexcept {
  return !token_.load(std::memory_order_relaxed) && !token_.exchange(true);
}

// A progress owner that only posts a message is done sooner than this thread could sleep and wake.
bool Progress::spin_to_acquire() noexcept {
  for (unsigned i = 0; i < pace::kRoundsBeforeYield; ++i) {
    if (num_contenders_.load() == 0 && try_acquire()) return true;
    sync::relax();
  }
  return false;
}

void Progress::acquire() noexcept {
  num_contenders_.fetch_add(1);
  while (!try_acquire()) {
    for_token_.sleep_until(sync::Clock::now() + pace::kLongSleep, [this] { return !token_.load(); });
  }
  num_contenders_.fetch_sub(1);
}

void Progress::release_once() noexcept {
  QueueNode* completions = driver_.take_completions();
  token_.store(false);
  for_token_.notify();
  if (completions == nullptr) return;
  if (background_is_away_.load()) for_end_.notify();
  driver_.complete(completions);
  for_token_.notify();
  notify_of_end();
}

void Progress::notify_of_end() noexcept {
  for_end_.notify();
  if (waiter_blocks_.load()) doorbell_.ring_waiter();
}

// The background thread may have decided to sleep before the messages that are held back were sent.
void Progress::release() noexcept {
  bool is_to_look = background_blocks_.load() && driver_.holds_back();
  release_once();
  while (driver_.has_submissions() && try_acquire()) {
    driver_.drive();
    is_to_look |= background_blocks_.load() && driver_.holds_back();
    wake();
    release_once();
  }
  if (is_to_look) wake_to_look();
}

void Progress::wake() noexcept {
  if (waiter_blocks_.load()) return doorbell_.ring_waiter();
  if (deeply_asleep_.load() && deeply_asleep_.exchange(false)) doorbell_.ring();
}

void Progress::wake_to_look() noexcept {
  if (waiter_blocks_.load()) doorbell_.ring_waiter();
  if (background_blocks_.load()) doorbell_.ring();
}

// The background thread also sleeps for moments where no thread blocks, for example after a waiter has left.
void Progress::wake_all() noexcept {
  if (waiter_blocks_.load()) doorbell_.ring_waiter();
  doorbell_.ring();
}

bool Progress::wait(const sync::atomic<bool>& finished, sync::Clock::time_point deadline,
                    sync::Clock::duration spin_budget) noexcept {
  bool has_blocked = false;
  bool leaves_work = true;
  sync::Clock::duration spin_budget_left = spin_budget;
  while (!finished.load()) {
    if (spin_budget == kFollower && !background_is_away_.load()) {
      sleep_beside_driver(finished, deadline);
      if (sync::Clock::now() >= deadline) break;
      continue;
    }
    if (!spin_to_acquire()) {
      for_token_.sleep_until(deadline, [&] { return finished.load() || !token_.load(); });
      if (sync::Clock::now() >= deadline) break;
      continue;
    }
    const Pause pause = spin(finished, deadline, spin_budget_left);
    if (pause == Pause::kQuiet && spin_budget != kFollower && may_block()) {
      has_blocked = true;
      leaves_work = true;  // until it is found to leave none
      // When yielding on an oversubscribed host, charge only the time asleep to the spin budget.
      if (!is_oversubscribed()) spin_budget_left = {};
      const sync::Clock::time_point began = sync::Clock::now();
      const bool has_event = block_on_events(finished, deadline);
      spin_budget_left = has_event
                             ? spin_budget
                             : std::max<sync::Clock::duration>(spin_budget_left - (sync::Clock::now() - began), {});
      continue;
    }
    if (has_blocked)
      leaves_work = sync::Clock::now() >= oversubscribed_until_ || driver_.has_running() || driver_.holds_back() ||
                    for_end_.any();
    release();
    if (pause == Pause::kDeadline) break;
    if (pause == Pause::kQuiet) {
      sleep_beside_driver(finished, deadline);
      if (sync::Clock::now() >= deadline) break;
    }
  }
  if (has_blocked && leaves_work) doorbell_.ring();  // an idle background thread that wakes needlessly is in the way
  return finished.load();
}

bool Progress::may_block() const noexcept {
  return !waiter_blocks_.load() && !driver_.has_flag_waiters();
}

bool Progress::drive_and_count() noexcept {
  if (driver_.drive() == 0) return false;
  num_busy_rounds_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// If arming fails, something has arrived since, or the transport holds messages back until a peer has made room.
Progress::Armed Progress::arm() noexcept {
  if (driver_.arm()) return Armed::kYes;
  if (drive_and_count()) return Armed::kMoved;
  return driver_.arm() ? Armed::kYes : Armed::kHeldBack;
}

// The progress owner calls it; it releases the token. Sleeps until the transport has an event (returns true), another
// thread has finished or started something, or deadlines must be checked.
bool Progress::block_on_events(const sync::atomic<bool>& finished, sync::Clock::time_point deadline) noexcept {
  const Armed armed = arm();
  // Before the token is released, so that threads that start or finish something see it.
  waiter_blocks_.store(armed == Armed::kYes);
  release();
  if (armed == Armed::kHeldBack) {
    for_end_.sleep_until(std::min(deadline, sync::Clock::now() + pace::kShortSleep), [&] { return finished.load(); });
  }
  if (armed != Armed::kYes) return true;
  if (background_blocks_.load()) doorbell_.ring();  // one blocked thread is enough
  const auto time_left = std::chrono::ceil<microseconds>(deadline - sync::Clock::now());
  const auto at_most = std::clamp<microseconds>(time_left, microseconds{0}, pace::kDeepSleepRunning);
  const bool has_event = !finished.load() && doorbell_.block_on_events(at_most);
  waiter_blocks_.store(false);
  return has_event;
}

// Used where another waiter blocks, or the background thread polls a device's flag.
void Progress::sleep_beside_driver(const sync::atomic<bool>& finished, sync::Clock::time_point deadline) noexcept {
  if (!background_blocks_.load() && !waiter_blocks_.load()) doorbell_.ring();  // the background thread takes over now
  const bool alone = background_is_away_.load();
  for_end_.sleep_until(alone ? std::min(deadline, sync::Clock::now() + pace::kShortSleep) : deadline,
                       [&] { return finished.load() || (!alone && background_is_away_.load()); });
}

// Progress owner only. Clears an expired time, so that later calls need not read the clock.
bool Progress::is_oversubscribed() noexcept {
  if (oversubscribed_until_ == sync::Clock::time_point{}) return false;
  if (sync::Clock::now() < oversubscribed_until_) return true;
  oversubscribed_until_ = {};
  return false;
}

Progress::Pause Progress::spin(const sync::atomic<bool>& finished, sync::Clock::time_point deadline,
                               sync::Clock::duration spin_budget) noexcept {
  sync::Clock::time_point looked_at{};  // not read yet: an operation that ends soon needs no clock
  sync::Clock::time_point busy_at{};
  const bool oversubscribed = is_oversubscribed();
  unsigned num_idle = 0;
  for (unsigned round = 1; !finished.load(); ++round) {
    if (drive_and_count()) {
      num_idle = 0;
    } else if (++num_idle > pace::kRoundsBeforeYield) {
      if (oversubscribed) return Pause::kQuiet;
      sync::yield();
    } else if (num_idle > pace::kRoundsBeforePause) {
      sync::relax();
    }
    if (driver_.has_completions() || num_contenders_.load(std::memory_order_relaxed) != 0) return Pause::kYield;
    if (spin_budget == kFollower && !background_is_away_.load()) return Pause::kQuiet;
    if (round % kRoundsBetweenClockReads == 0) {
      const sync::Clock::time_point now = sync::Clock::now();
      const bool is_first_look = looked_at == sync::Clock::time_point{};
      const auto took = is_first_look ? sync::Clock::duration{0} : now - looked_at;
      looked_at = now;
      const bool idle = num_idle >= kRoundsBetweenClockReads;
      if (!idle || is_first_look) busy_at = now;
      driver_.tick(now);
      if (now >= deadline) return Pause::kDeadline;
      if (idle && took > pace::kContended) {
        oversubscribed_for_ = std::min<sync::Clock::duration>(2 * oversubscribed_for_, pace::kLongestOversubscribed);
        oversubscribed_until_ = std::max(oversubscribed_until_, now + oversubscribed_for_);
        return Pause::kQuiet;
      }
      if (now - busy_at > spin_budget) return Pause::kQuiet;
    }
  }
  if (!oversubscribed)
    oversubscribed_for_ = std::max<sync::Clock::duration>(oversubscribed_for_ / 2, pace::kShortestOversubscribed);
  return Pause::kFinished;
}

static thread_local bool is_background_thread = false;

bool Progress::is_background() noexcept {
  return is_background_thread;
}

void Progress::run_in_background() noexcept {
  pthread_setname_np(pthread_self(), "axon-progress");
  is_background_thread = true;
  for (unsigned round = 1; !stopping_.load(); ++round) {
    write_trace();
    if (waiter_blocks_.load()) {
      sleep(Sleep::kLight, pace::kIdle);  // or until the waiter leaves, which may return with the next operation
      sleep(Sleep::kLight, pace::kLongSleep);
      continue;
    }
    if (num_contenders_.load() != 0 || for_token_.any() || !try_acquire()) {
      sleep(Sleep::kLight, pace::kLongSleep);
      continue;
    }
    const microseconds pause = drive_in_background();
    const bool deep = background_blocks_.load();
    background_is_away_.store(driver_.has_completions());
    release();
    background_is_away_.store(false);
    if (pause.count() != 0) {
      sleep(deep ? Sleep::kDeep : Sleep::kLight, pause);
      round = 0;
    } else if (round % kRoundsBetweenLooks == 0) {
      sleep(Sleep::kLight, microseconds{0});
    } else if (round < pace::kRoundsBeforeYield) {
      sync::relax();  // on an oversubscribed host, yielding would delay the rest of a message that is on its way
    } else {
      sync::yield();
    }
  }
}

// Runs one round as progress owner. Returns how long to sleep after it, deeply if background_blocks_ is set. What has
// moved may be a fragment of a large message, whatever runs here, so the next one is polled for at once. On an
// oversubscribed host, arming tells whether there is one.
microseconds Progress::drive_in_background() noexcept {
  const bool moved = drive_and_count();
  const sync::Clock::time_point now = sync::Clock::now();
  driver_.tick(now);
  const bool awaits_flag = driver_.has_flag_waiters();
  const bool running = awaits_flag || is_serving_ || driver_.has_running();
  const uint64_t num_busy_rounds = num_busy_rounds_.load(std::memory_order_relaxed);
  if (num_busy_rounds != seen_busy_rounds_) {
    seen_busy_rounds_ = num_busy_rounds;
    busy_at_ = now;
  }
  const bool oversubscribed = now < oversubscribed_until_;
  const sync::Clock::duration quiet = oversubscribed ? pace::kWarm : now - busy_at_;
  const bool answers_alone = driver_.serves_device() || is_serving_;
  const sync::Clock::duration hot = answers_alone ? pace::kHotAlone : sync::Clock::duration(pace::kHot);
  if ((moved && !oversubscribed) || (running && quiet < hot)) return microseconds{0};
  const microseconds sleep_time = running ? pace::kShortSleep : pace::kLongSleep;
  if (quiet < pace::kWarm && (awaits_flag || (driver_.has_neighbours() && !is_serving_))) return sleep_time;
  if (const Armed armed = arm(); armed != Armed::kYes)
    return armed == Armed::kMoved ? microseconds{0} : pace::kShortSleep;
  background_blocks_.store(true);
  if (quiet < pace::kWarm) return sleep_time;
  is_serving_ = false;
  if (awaits_flag) {
    const auto fraction = std::chrono::duration_cast<microseconds>(quiet / pace::kFlagSleepFraction);
    return std::clamp<microseconds>(fraction, pace::kShortSleep, pace::kLongSleep);
  }
  if (oversubscribed)
    return pace::kDeepSleepRunning;  // short enough for deadlines of later operations, which need not wake the thread
  deeply_asleep_.store(true);        // before the token is released: a thread that starts something next sees it
  if (!running) return pace::kDeepSleepIdle;
  const auto fraction = std::chrono::duration_cast<microseconds>(quiet / pace::kDeepSleepFraction);
  return std::clamp<microseconds>(fraction, pace::kDeepSleepRunning, pace::kLongestSleepRunning);
}

// Without the token: a file system may be slow, and waiters drive meanwhile.
void Progress::write_trace() noexcept {
  if (!trace::is_on() || sync::Clock::now() < traced_at_ + kTraceInterval) [[likely]]
    return;
  background_is_away_.store(true);
  for_end_.notify();
  trace::flush();
  background_is_away_.store(false);
  traced_at_ = sync::Clock::now();
}

void Progress::sleep(Sleep depth, microseconds at_most) noexcept {
  if (trace::is_on()) [[unlikely]]
    at_most = std::min<microseconds>(at_most, kTraceInterval);
  const std::span<const transport::PeerId> ended = doorbell_.sleep(depth, at_most);
  background_blocks_.store(false);
  deeply_asleep_.store(false);
  for (const transport::PeerId peer : ended) {
    exclusively([&] { driver_.on_process_ended(peer); });
  }
}

}  // namespace axon::engine
