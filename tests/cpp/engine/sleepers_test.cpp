#include "engine/sleepers.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

// Wakes up once: to sleep, and when it is over. Waking it each time would be a system call and a change of threads.
TEST(Sleepers, whom_a_change_does_not_concern_sleeps_on) {
  Sleepers sleepers;
  std::atomic<bool> may_go{false};
  std::atomic<int> num_looks{0};  // of the sleeper's own
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
    std::this_thread::sleep_for(10us);  // the time that it would take to look again
  }
  EXPECT_LT(num_looks.load(), 10);  // a system may wake it for no reason, too
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
