#include "engine/sleepers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

// The sleeper runs twice: to fall asleep, and at the end. Waking it on every change would cost a system call and a
// context switch each.
TEST(Sleepers, whom_a_change_does_not_concern_sleeps_on) {
  Sleepers sleepers;
  std::atomic<bool> may_go{false};
  std::atomic<int> num_looks{0};  // checks made by the sleeper itself
  std::thread sleeper([&] {
    const std::thread::id self = std::this_thread::get_id();
    sleepers.sleep_until(sync::Clock::now() + 60s, [&] {
      if (std::this_thread::get_id() == self) ++num_looks;
      return may_go.load();
    });
  });
  while (num_looks.load() == 0) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    sleepers.notify();
    std::this_thread::sleep_for(10us);  // the time that another check would take
  }
  EXPECT_LT(num_looks.load(), 10);  // the system may wake it spuriously, too
  may_go.store(true);
  sleepers.notify();
  sleeper.join();
}

TEST(Sleepers, all_whom_a_change_concerns_wake) {
  Sleepers sleepers;
  std::atomic<bool> may_go{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      sleepers.sleep_until(sync::Clock::now() + 60s, [&] { return may_go.load(); });
      EXPECT_TRUE(may_go.load());
    });
  }
  may_go.store(true);
  sleepers.notify();
  for (std::thread& thread : threads) thread.join();
}

TEST(Sleepers, a_deadline_ends_a_sleep) {
  Sleepers sleepers;
  sleepers.sleep_until(sync::Clock::now() + 1ms, [] { return false; });
  sleepers.notify();
}

}  // namespace
}  // namespace axon::engine
