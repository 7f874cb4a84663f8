#include "base/interruptible_mutex.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace axon {
namespace {

using namespace std::chrono_literals;

ErrorCode code_of_lock(InterruptibleMutex& mutex, std::chrono::milliseconds timeout) {
  return mutex.lock_until(sync::Clock::now() + timeout).status().code();
}

ErrorCode code_of_lock_elsewhere(InterruptibleMutex& mutex, std::chrono::milliseconds timeout) {
  ErrorCode code{};
  std::thread([&] { code = code_of_lock(mutex, timeout); }).join();
  return code;
}

TEST(InterruptibleMutex, is_held_by_one_thread_at_a_time) {
  InterruptibleMutex mutex;
  {
    const auto held = mutex.lock_until(sync::Clock::now() + 10s);
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(code_of_lock_elsewhere(mutex, 10ms), ErrorCode::kTimeout);
  }
  EXPECT_EQ(code_of_lock_elsewhere(mutex, 10s), ErrorCode::kOk);
  EXPECT_EQ(code_of_lock(mutex, 10s), ErrorCode::kOk);
}

TEST(InterruptibleMutex, refuses_its_holder) {
  InterruptibleMutex mutex;
  const auto held = mutex.lock_until(sync::Clock::now() + 10s);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(code_of_lock(mutex, 1h), ErrorCode::kInvalidArgument);
}

TEST(InterruptibleMutex, an_interrupt_ends_the_wait) {
  InterruptibleMutex mutex;
  const auto held = mutex.lock_until(sync::Clock::now() + 10s);
  ASSERT_TRUE(held.ok());
  interrupts::set_check([]() noexcept { return true; });
  EXPECT_EQ(code_of_lock_elsewhere(mutex, 1h), ErrorCode::kCancelled);
  interrupts::set_check(nullptr);
}

}  // namespace
}  // namespace axon
