// Tests what ends the sleeps of the threads that drive the engine, and that no such event is lost.
#include "engine/doorbell.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/event_descriptor.hpp"
#include "base/resources.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // ends by something else, or the test takes this long
constexpr auto kSoon = 30s;

// A child that ends when it is told, or with the thread that made it.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    _exit(0);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int32_t pid() const noexcept { return pid_; }
  void end() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

class DoorbellTest : public testing::TestWithParam<Sleep> {
 protected:
  // Returns whether the sleep took much less than it may.
  template <typename Action>
  static bool ends_soon(Action action) {
    const auto began = std::chrono::steady_clock::now();
    action();
    return std::chrono::steady_clock::now() - began < kSoon;
  }

  FileDescriptor transport_ = open_event();
  Doorbell doorbell_{transport_.get()};
};

TEST_P(DoorbellTest, ring_before_a_sleep_ends_it_once) {
  doorbell_.ring();
  doorbell_.ring();
  EXPECT_TRUE(ends_soon([&] { EXPECT_TRUE(doorbell_.sleep(GetParam(), kLong).empty()); }));
  const auto began = std::chrono::steady_clock::now();
  doorbell_.sleep(GetParam(), 20ms);
  EXPECT_GE(std::chrono::steady_clock::now() - began, 20ms);
}

TEST_P(DoorbellTest, rings_of_another_thread_end_each_sleep) {
  std::atomic<int> num_woken{0};
  std::thread sleeper([&] {
    for (int i = 0; i < 2000; ++i) {
      doorbell_.sleep(GetParam(), kLong);
      num_woken.fetch_add(1);
    }
  });
  EXPECT_TRUE(ends_soon([&] {
    for (int i = 0; i < 2000; ++i) {
      doorbell_.ring();
      while (num_woken.load() <= i) std::this_thread::yield();
    }
  }));
  sleeper.join();
}

// The sleep began before there was a set of processes that it could wait for.
TEST_P(DoorbellTest, first_process_that_is_watched_during_a_sleep_ends_a_later_one) {
  Child child;
  std::atomic<int> num_sleeps{0};
  std::atomic<int> ended{-1};
  std::thread sleeper([&] {
    while (ended.load() < 0) {
      num_sleeps.fetch_add(1);
      for (const transport::PeerId peer : doorbell_.sleep(GetParam(), kLong)) ended.store(static_cast<int>(peer));
    }
  });
  while (num_sleeps.load() == 0) std::this_thread::yield();
  EXPECT_TRUE(ends_soon([&] {
    EXPECT_TRUE(doorbell_.watch(child.pid(), 5).ok());
    child.end();
    sleeper.join();
  }));
  EXPECT_EQ(ended.load(), 5);
}

TEST_P(DoorbellTest, later_processes_end_the_sleep_during_which_they_are_watched) {
  Child first;
  Child second;
  ASSERT_TRUE(doorbell_.watch(first.pid(), 1).ok());
  doorbell_.sleep(GetParam(), 0us);
  std::vector<transport::PeerId> ended;
  std::thread sleeper([&] {
    while (ended.size() < 2) {
      const auto peers = doorbell_.sleep(GetParam(), kLong);
      ended.insert(ended.end(), peers.begin(), peers.end());
    }
  });
  EXPECT_TRUE(ends_soon([&] {
    EXPECT_TRUE(doorbell_.watch(second.pid(), 2).ok());
    second.end();
    first.end();
    sleeper.join();
  }));
  EXPECT_EQ(ended, (std::vector<transport::PeerId>{2, 1}));
}

TEST_P(DoorbellTest, only_deep_sleep_waits_for_the_transport) {
  set_event(transport_);
  const auto began = std::chrono::steady_clock::now();
  doorbell_.sleep(GetParam(), GetParam() == Sleep::kDeep ? std::chrono::microseconds(kLong) : 20ms);
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LT(took, kSoon);
  if (GetParam() == Sleep::kLight) {
    EXPECT_GE(took, 20ms);
  }
}

TEST_P(DoorbellTest, takes_two_descriptors_unless_processes_are_watched) {
  const size_t num_free = num_free_descriptors().value();
  Doorbell doorbell(transport_.get());
  EXPECT_EQ(num_free - num_free_descriptors().value(), 2u);
  Child child;
  ASSERT_TRUE(doorbell.watch(child.pid(), 3).ok());
  doorbell.sleep(GetParam(), 0us);
  EXPECT_EQ(num_free - num_free_descriptors().value(), 4u);
  doorbell.close();
  EXPECT_EQ(num_free, num_free_descriptors().value());
}

INSTANTIATE_TEST_SUITE_P(Depths, DoorbellTest, testing::Values(Sleep::kLight, Sleep::kDeep),
                         [](const auto& each) { return each.param == Sleep::kDeep ? "deep" : "light"; });

TEST(DoorbellOfWaitersTest, waiter_is_woken_by_its_ring_and_by_the_transport) {
  const FileDescriptor transport = open_event();
  Doorbell doorbell(transport.get());
  doorbell.ring_waiter();
  EXPECT_FALSE(doorbell.block_on_events(kLong));
  set_event(transport);
  EXPECT_TRUE(doorbell.block_on_events(kLong));
}

}  // namespace
}  // namespace axon::engine
