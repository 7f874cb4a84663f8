// Tests the progress token and its wake-ups without a transport: jobs finish after a few rounds of progress. The test
// is meant for the thread sanitizer. Every wait has a generous deadline, so that a lost wake-up fails instead of
// hanging.
#include "engine/progress.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/trace.hpp"
#include "engine/doorbell.hpp"
#include "engine/pace.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

struct Job : QueueNode {
  explicit Job(int rounds) : rounds_left(rounds) {}
  int rounds_left;
  std::atomic<bool> finished{false};
};

class JobDriver final : public Driver {
 public:
  void submit(Job& job) { submitted_.push(job); }

  unsigned drive() noexcept override {
    EXPECT_FALSE(inside_.exchange(true)) << "two threads own the progress token";
    for (QueueNode* job = submitted_.take_all(); job != nullptr; job = job->next) {
      running_.push_back(static_cast<Job*>(job));
    }
    const unsigned num_pieces = take_piece() ? 1 : 0;
    const unsigned num_moved = frozen ? 0 : static_cast<unsigned>(running_.size());
    if (num_moved != 0) {
      std::erase_if(running_, [&](Job* job) {
        if (--job->rounds_left > 0) return false;
        job->next = completions_;
        completions_ = job;
        return true;
      });
    }
    inside_.store(false);
    return num_moved + num_pieces;
  }
  void tick(sync::Clock::time_point) noexcept override { num_ticks.fetch_add(1); }
  bool has_submissions() const noexcept override { return !submitted_.empty(); }
  bool has_running() const noexcept override { return !running_.empty(); }
  bool holds_back() const noexcept override { return false; }
  bool serves_device() const noexcept override { return false; }
  bool has_flag_waiters() const noexcept override { return false; }
  bool has_neighbours() const noexcept override { return true; }
  bool arm() noexcept override { return true; }
  void on_process_ended(transport::PeerId peer) noexcept override { ended.store(static_cast<int>(peer)); }
  QueueNode* take_completions() noexcept override { return std::exchange(completions_, nullptr); }
  bool has_completions() const noexcept override { return completions_ != nullptr; }
  void complete(QueueNode* chain) noexcept override {
    while (chain != nullptr) {
      auto* job = static_cast<Job*>(std::exchange(chain, chain->next));
      job->finished.store(true);
    }
  }

  std::atomic<bool> frozen{false};      // no job advances while set
  std::atomic<int> num_pieces_left{0};  // work that no job here awaits, one item per round
  std::atomic<int> num_ticks{0};
  std::atomic<int> ended{-1};
  std::atomic<sync::Clock::duration> shortest_gap{sync::Clock::duration::max()};  // the shortest time between two items

 private:
  bool take_piece() noexcept {
    if (num_pieces_left.load() == 0) return false;
    const auto now = sync::Clock::now();
    if (took_piece_at_ != sync::Clock::time_point{}) shortest_gap = std::min(shortest_gap.load(), now - took_piece_at_);
    took_piece_at_ = now;
    num_pieces_left.fetch_sub(1);
    return true;
  }

  sync::Clock::time_point took_piece_at_{};
  Submissions submitted_;
  std::atomic<bool> inside_{false};
  std::vector<Job*> running_;
  QueueNode* completions_ = nullptr;
};

class ProgressTest : public testing::Test {
 protected:
  static sync::Clock::time_point soon() { return sync::Clock::now() + 60s; }

  FileDescriptor transport_{eventfd(0, EFD_NONBLOCK)};
  Doorbell doorbell_{transport_.get()};
  JobDriver driver_;
  Progress progress_{driver_, doorbell_};
};

TEST_F(ProgressTest, waiter_drives_its_own_job) {
  for (int i = 0; i < 1000; ++i) {
    Job job(i % 7 + 1);
    driver_.submit(job);
    progress_.pump();
    ASSERT_TRUE(progress_.wait(job.finished, soon()));
  }
}

TEST_F(ProgressTest, many_threads_submit_and_wait) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 2000; ++i) {
        Job job((i + thread) % 5 + 1);
        driver_.submit(job);
        progress_.pump();
        ASSERT_TRUE(progress_.wait(job.finished, soon()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ProgressTest, background_finishes_what_no_thread_waits_for) {
  std::deque<Job> jobs;
  for (int i = 0; i < 200; ++i) {
    Job& job = jobs.emplace_back(3);
    driver_.submit(job);
    progress_.pump();
    progress_.wake();
  }
  for (Job& job : jobs) {
    while (!job.finished.load()) std::this_thread::yield();
  }
}

TEST_F(ProgressTest, wakes_the_background_from_deep_sleep) {
  Job first(1);
  driver_.submit(first);
  progress_.pump();
  // Usually long enough for it to fall asleep; the test is right in any case.
  Job probe(1'000'000'000);
  driver_.frozen = true;
  EXPECT_FALSE(progress_.wait(probe.finished, sync::Clock::now() + 30ms));
  driver_.frozen = false;
  Job job(2);
  driver_.submit(job);
  progress_.pump();
  progress_.wake();
  while (!job.finished.load()) std::this_thread::yield();
}

TEST_F(ProgressTest, waiter_without_spin_budget_is_woken_by_the_background) {
  driver_.frozen = true;
  Job job(1);
  driver_.submit(job);
  progress_.pump();
  std::thread waiter([&] { EXPECT_TRUE(progress_.wait(job.finished, soon())); });
  const int num_ticks = driver_.num_ticks.load();
  while (driver_.num_ticks.load() < num_ticks + 5) std::this_thread::yield();  // the background thread drives progress
  driver_.frozen = false;
  const uint64_t one = 1;
  ASSERT_EQ(::write(transport_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  waiter.join();
}

TEST_F(ProgressTest, waiter_is_woken_by_the_background_while_oversubscribed) {
  progress_.exclusively([&] { progress_.set_oversubscribed(); });
  for (int i = 0; i < 20; ++i) {
    driver_.frozen = true;
    Job job(1);
    driver_.submit(job);
    progress_.pump();
    std::thread waiter([&] { EXPECT_TRUE(progress_.wait(job.finished, soon())); });
    driver_.frozen = false;
    const uint64_t one = 1;
    ASSERT_EQ(::write(transport_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    waiter.join();
  }
}

// Other threads may get the core between any two items, but not between all.
TEST_F(ProgressTest, pieces_of_what_no_job_awaits_are_taken_without_sleeping_between_them) {
  driver_.num_pieces_left = 200;
  const uint64_t one = 1;
  ASSERT_EQ(write(transport_.get(), &one, sizeof one), sizeof one);  // wakes the thread that polls the descriptor
  const auto deadline = soon();
  while (driver_.num_pieces_left.load() > 0 && sync::Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  ASSERT_EQ(driver_.num_pieces_left.load(), 0);
  EXPECT_LT(driver_.shortest_gap.load(), pace::kShortSleep);
}

TEST_F(ProgressTest, deadline_ends_a_wait) {
  driver_.frozen = true;
  Job job(1);
  driver_.submit(job);
  progress_.pump();
  EXPECT_FALSE(progress_.wait(job.finished, sync::Clock::now() + 20ms));
  EXPECT_FALSE(progress_.wait(job.finished, sync::Clock::now() - 1ms));
  driver_.frozen = false;
  EXPECT_TRUE(progress_.wait(job.finished, soon()));
}

TEST_F(ProgressTest, exclusive_actions_get_the_token_from_a_spinning_waiter) {
  driver_.frozen = true;
  Job job(1);
  driver_.submit(job);
  progress_.pump();
  std::thread waiter([&] { EXPECT_TRUE(progress_.wait(job.finished, soon())); });
  int num_actions = 0;
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      for (int k = 0; k < 200; ++k) progress_.exclusively([&] { ++num_actions; });
    });
  }
  for (std::thread& other : others) other.join();
  EXPECT_EQ(progress_.exclusively([&] { return num_actions; }), 600);
  driver_.frozen = false;
  waiter.join();
}

TEST_F(ProgressTest, tells_when_a_watched_process_ends) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_TRUE(progress_.exclusively([&] { return doorbell_.watch(child, 7).ok(); }));
  EXPECT_EQ(driver_.ended.load(), -1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const sync::Clock::time_point deadline = soon();
  while (driver_.ended.load() != 7 && sync::Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(driver_.ended.load(), 7);
  EXPECT_EQ(doorbell_.watch(child, 7).code(), ErrorCode::kPeerLost);
}

TEST_F(ProgressTest, a_trace_is_written_soon_after_an_event_even_while_idle_and_while_others_hold_the_token) {
  const std::filesystem::path file = trace::file_of(testing::TempDir() + "progress_" + std::to_string(getpid()), 0);
  setenv("AXON_TRACE", (testing::TempDir() + "progress_" + std::to_string(getpid())).c_str(), 1);
  ASSERT_TRUE(trace::open(0).ok());
  unsetenv("AXON_TRACE");
  const auto is_written_soon = [&] {
    const auto size = std::filesystem::file_size(file);
    trace::write({.phase = trace::Phase::kInstant, .name = "event", .at = sync::Clock::now(), .details = {}});
    // Half of the time that an idle thread sleeps if no trace has to be written.
    const sync::Clock::time_point deadline = sync::Clock::now() + 500ms;
    while (std::filesystem::file_size(file) == size && sync::Clock::now() < deadline) std::this_thread::yield();
    return std::filesystem::file_size(file) != size;
  };
  trace::flush();
  // A majority suffices: a loaded machine sometimes delays a thread.
  int num_soon = 0;
  for (int i = 0; i < 20; ++i) num_soon += is_written_soon() ? 1 : 0;
  EXPECT_GT(num_soon, 10);
  const auto is_one_written_soon = [&] { return is_written_soon() || is_written_soon() || is_written_soon(); };
  EXPECT_TRUE(progress_.exclusively(is_one_written_soon));
  trace::close();
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace axon::engine
