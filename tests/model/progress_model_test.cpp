// Checks the progress token, the submission queue and the completion queue in every interleaving. Only the progress
// owner drives, every submission is finished, and no thread sleeps longer than a short sleep while there is something
// to do.
//
// Built again with faults seeded into the engine's own code (AXON_SEEDED); the same programs must find each fault.
#include <algorithm>
#include <vector>

#include "engine/progress.hpp"
#include "programs.hpp"
#include "scheduler.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

enum class Ends : uint8_t {
  kAtOnce,
  kLeavingSomething,  // the transport holds something back until the next round
  kInTwoRounds,       // without an event: the transport has more to do and cannot be armed
  kByMessage,
  kByDeadline,
};

struct Job : QueueNode {
  explicit Job(Ends how) : ends(how) {}
  const Ends ends;
  int num_rounds = 0;
  sync::atomic<bool> finished{false};
};

class JobDriver final : public Driver {
 public:
  JobDriver(Doorbell& doorbell, bool has_neighbours) : doorbell_(doorbell), has_neighbours_(has_neighbours) {}

  void submit(Job& job) { submitted_.push(job); }

  // A message from the network, on any thread.
  void bring_message() {
    model::point();
    has_message_ = has_unseen_ = true;
    if (std::exchange(armed_, false)) doorbell_.signal();
  }

  // For threads that must run when the background thread is about to fall asleep.
  void block_until_armed() const {
    model::block_until([this] { return was_armed_; }, model::kNever);
  }

  unsigned drive() noexcept override {
    model::check(!driven_, "one thread drives at a time");
    driven_ = true;
    model::point();
    const bool moves = std::exchange(holds_back_, false);
    for (QueueNode* item = submitted_.take_all(); item != nullptr;) {
      running_.push_back(static_cast<Job*>(std::exchange(item, item->next)));
    }
    has_unseen_ = false;
    const size_t num_over = end_if([this](Job& job) {
      holds_back_ |= job.ends == Ends::kLeavingSomething;
      return job.ends == Ends::kAtOnce || job.ends == Ends::kLeavingSomething ||
             (job.ends == Ends::kByMessage && has_message_) ||
             (job.ends == Ends::kInTwoRounds && ++job.num_rounds == 2);
    });
    driven_ = false;
    return static_cast<unsigned>(num_over) + (moves ? 1 : 0);
  }
  void tick(sync::Clock::time_point) noexcept override {
    end_if([](const Job& job) { return job.ends == Ends::kByDeadline; });
  }
  bool has_submissions() const noexcept override { return !submitted_.empty(); }
  bool has_running() const noexcept override { return !running_.empty(); }
  bool holds_back() const noexcept override { return holds_back_; }
  bool has_flag_waiters() const noexcept override { return false; }
  bool serves_device() const noexcept override { return false; }
  bool has_neighbours() const noexcept override { return has_neighbours_; }
  bool arm() noexcept override {
    doorbell_.hush();
    const auto is_on_its_way = [](const Job* job) { return job->ends == Ends::kInTwoRounds; };
    armed_ = !has_unseen_ && !holds_back_ && std::ranges::none_of(running_, is_on_its_way);
    was_armed_ |= armed_;
    return armed_;
  }
  void on_process_ended(transport::PeerId) noexcept override {}
  QueueNode* take_completions() noexcept override { return std::exchange(completions_, nullptr); }
  bool has_completions() const noexcept override { return completions_ != nullptr; }
  void complete(QueueNode* chain) noexcept override {
    while (chain != nullptr) {
      auto& job = static_cast<Job&>(*std::exchange(chain, chain->next));
      model::check(!job.finished.load(), "a job is finished once");
      job.finished.store(true);
    }
  }

 private:
  template <typename Predicate>
  size_t end_if(Predicate is_over) {
    return std::erase_if(running_, [&](Job* job) {
      if (!is_over(*job)) return false;
      job->next = std::exchange(completions_, job);
      return true;
    });
  }

  Doorbell& doorbell_;
  const bool has_neighbours_;
  Submissions submitted_;
  std::vector<Job*> running_;
  QueueNode* completions_ = nullptr;
  bool has_message_ = false;
  bool has_unseen_ = false;  // arrived since the last round
  bool armed_ = false;
  bool was_armed_ = false;
  bool holds_back_ = false;
  bool driven_ = false;
};

struct World {
  explicit World(bool has_neighbours = true) : driver(doorbell, has_neighbours) {}

  Doorbell doorbell;
  JobDriver driver;
  Progress progress{driver, doorbell};

  // Starts a job as Engine::submit does.
  void start(Job& job) {
    driver.submit(job);
    progress.pump();
    if (!job.finished.load()) progress.wake();
  }
  void run(Ends how, sync::Clock::duration spin_budget = pace::kSpinBudget) {
    Job job(how);
    start(job);
    model::check(progress.wait(job.finished, sync::Clock::time_point(model::kNever), spin_budget),
                 "the wait ends well");
  }
  // Starts a job that only the background thread finishes.
  void start_only(Ends how) {
    Job job(how);
    start(job);
    model::block_until([&] { return job.finished.peek(); }, model::kNever);
  }
};

void two_threads_run_a_job_each() {
  World world;
  sync::thread other([&] { world.run(Ends::kAtOnce); });
  world.run(Ends::kAtOnce);
  other.join();
}

void one_waits_for_a_message() {
  World world;
  sync::thread network([&] { world.driver.bring_message(); });
  world.run(Ends::kByMessage);
  network.join();
}

// The message arrives at all stages of the waiter's spin budget.
template <int kMicroseconds, bool kHasNeighbours = true>
void message_comes_after() {
  World world(kHasNeighbours);
  sync::thread network([&] {
    model::block_until([] { return false; }, model::now() + std::chrono::microseconds(kMicroseconds));
    world.driver.bring_message();
  });
  world.run(Ends::kByMessage);
  world.run(Ends::kByMessage);
  network.join();
}

void message_comes_while_oversubscribed() {
  World world;
  world.progress.exclusively([&] { world.progress.set_oversubscribed(); });
  sync::thread network([&] {
    world.driver.block_until_armed();
    world.driver.bring_message();
  });
  world.run(Ends::kByMessage);
  world.run(Ends::kAtOnce);
  network.join();
}

void two_wait_for_a_message() {
  World world;
  sync::thread other([&] { world.run(Ends::kByMessage); });
  sync::thread network([&] { world.driver.bring_message(); });
  world.run(Ends::kByMessage);
  other.join();
  network.join();
}

// A follower leaves the driving to the background thread, or to the other waiter.
void one_follows() {
  World world;
  sync::thread network([&] { world.driver.bring_message(); });
  world.run(Ends::kByMessage, Progress::kFollower);
  network.join();
}

void one_of_two_follows() {
  World world;
  sync::thread other([&] { world.run(Ends::kByMessage, Progress::kFollower); });
  sync::thread network([&] { world.driver.bring_message(); });
  world.run(Ends::kByMessage);
  other.join();
  network.join();
}

template <bool kHasNeighbours>
void no_job_waits() {
  World world(kHasNeighbours);
  sync::thread network([&] { world.driver.bring_message(); });
  world.start_only(Ends::kByMessage);
  network.join();
}

void started_as_the_background_sleeps() {
  World world;
  world.driver.block_until_armed();
  world.start_only(Ends::kAtOnce);
}

void two_started_as_the_background_sleeps() {
  World world;
  sync::thread other([&] {
    world.driver.block_until_armed();
    world.start_only(Ends::kAtOnce);
  });
  world.driver.block_until_armed();
  world.start_only(Ends::kAtOnce);
  other.join();
}

void deadline_of_what_starts_as_the_background_sleeps() {
  World world;
  world.driver.block_until_armed();
  world.start_only(Ends::kByDeadline);
}

void exclusive_action_beside_a_waiter() {
  World world;
  sync::thread other([&] {
    world.progress.exclusively([&] { world.driver.drive(); });
    world.driver.bring_message();
  });
  world.run(Ends::kByMessage);
  other.join();
}

// Another thread ends what a waiter blocks for.
void ended_beside_a_blocked_waiter() {
  World world;
  sync::thread other([&] {
    world.driver.block_until_armed();
    world.progress.exclusively([&] { world.driver.tick({}); });
  });
  world.run(Ends::kByDeadline);
  other.join();
}

// A waiter whose job has ended does not drive what the job has left in the transport.
template <bool kIsOversubscribed>
void something_is_left_as_the_background_sleeps() {
  World world;
  if (kIsOversubscribed) world.progress.exclusively([&] { world.progress.set_oversubscribed(); });
  world.driver.block_until_armed();
  world.run(Ends::kLeavingSomething);
  model::block_until([&] { return !world.driver.holds_back(); }, model::kNever);
}

void something_is_left_by_a_blocked_waiter() {
  World world;
  sync::thread other([&] {
    world.driver.block_until_armed();
    world.start_only(Ends::kLeavingSomething);
    world.driver.bring_message();
  });
  world.run(Ends::kByMessage);
  other.join();
  model::block_until([&] { return !world.driver.holds_back(); }, model::kNever);
}

// Another thread starts a job that needs driving.
template <Ends kHow, bool kHasNeighbours = true>
void started_beside_a_blocked_waiter() {
  World world(kHasNeighbours);
  sync::thread other([&] {
    world.driver.block_until_armed();
    world.start_only(kHow);
    world.driver.bring_message();
  });
  world.run(Ends::kByMessage);
  other.join();
}

// The background thread, which has been idle, is woken when a waiter that has blocked leaves.
void started_after_a_blocked_waiter() {
  World world;
  sync::thread network([&] {
    world.driver.block_until_armed();
    model::block_until([] { return false; }, model::now() + pace::kLongSleep);
    world.driver.bring_message();
  });
  world.run(Ends::kByMessage);
  world.start_only(Ends::kInTwoRounds);
  network.join();
}

// On an oversubscribed host a waiter that has blocked may leave without waking the background thread.
void deadline_of_what_starts_after_a_blocked_waiter_while_oversubscribed() {
  World world;
  world.progress.exclusively([&] { world.progress.set_oversubscribed(); });
  sync::thread network([&] {
    world.driver.block_until_armed();
    world.driver.bring_message();
  });
  world.run(Ends::kByMessage);
  world.start_only(Ends::kByDeadline);
  network.join();
}

constexpr model::Limits kThree{.most_deviations = 3, .most_time = 1s};
constexpr model::Limits kFour{.most_deviations = 4, .most_time = 1s};
constexpr model::Limits kThreeWithSleeps{.most_deviations = 3, .most_time = 100s};  // sleeps of up to 10 s
constexpr model::Limits kFourWithSleeps{.most_deviations = 4, .most_time = 100s};

constexpr model::Program kPrograms[] = {
    {"two_threads_run_a_job_each", two_threads_run_a_job_each, kThree},
    {"one_waits_for_a_message", one_waits_for_a_message, kFour},
    {"message_comes_after_4_us", message_comes_after<4>, kThree},
    {"message_comes_after_8_us", message_comes_after<8>, kThree},
    {"message_comes_after_15_us", message_comes_after<15>, kThree},
    {"message_comes_after_40_us", message_comes_after<40>, kThree},
    {"message_comes_while_oversubscribed", message_comes_while_oversubscribed, kThree},
    {"network_brings_a_message_after_8_us", message_comes_after<8, false>, kThree},
    {"network_brings_a_message_after_15_us", message_comes_after<15, false>, kThree},
    {"two_wait_for_a_message", two_wait_for_a_message, kThree},
    {"one_follows", one_follows, kFour},
    {"one_of_two_follows", one_of_two_follows, kThree},
    {"no_job_waits", no_job_waits<true>, kFour},
    {"no_job_waits_for_the_network", no_job_waits<false>, kFour},
    {"started_as_the_background_sleeps", started_as_the_background_sleeps, kFour},
    {"two_started_as_the_background_sleeps", two_started_as_the_background_sleeps, kThree},
    {"deadline_of_what_starts_as_the_background_sleeps", deadline_of_what_starts_as_the_background_sleeps,
     kFourWithSleeps},
    {"something_is_left_as_the_background_sleeps", something_is_left_as_the_background_sleeps<false>, kFour},
    {"something_is_left_as_the_background_sleeps_while_oversubscribed",
     something_is_left_as_the_background_sleeps<true>, kFour},
    {"something_is_left_by_a_blocked_waiter", something_is_left_by_a_blocked_waiter, kThree},
    {"exclusive_action_beside_a_waiter", exclusive_action_beside_a_waiter, kThree},
    {"ended_beside_a_blocked_waiter", ended_beside_a_blocked_waiter, kThree},
    {"started_at_once_beside_a_blocked_waiter", started_beside_a_blocked_waiter<Ends::kAtOnce>, kThree},
    {"started_in_two_rounds_beside_a_blocked_waiter", started_beside_a_blocked_waiter<Ends::kInTwoRounds>, kThree},
    {"started_in_two_rounds_beside_one_of_the_network", started_beside_a_blocked_waiter<Ends::kInTwoRounds, false>,
     kThree},
    {"started_in_two_rounds_after_a_blocked_waiter", started_after_a_blocked_waiter, kThree},
    {"deadline_of_what_starts_after_a_blocked_waiter_while_oversubscribed",
     deadline_of_what_starts_after_a_blocked_waiter_while_oversubscribed, kThreeWithSleeps},
};

}  // namespace
}  // namespace axon::engine

std::span<const axon::model::Program> axon::model::programs() {
  return axon::engine::kPrograms;
}
