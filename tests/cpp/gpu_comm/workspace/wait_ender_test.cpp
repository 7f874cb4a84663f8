#include "gpu_comm/workspace/wait_ender.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>

namespace axon::gpu_comm {
namespace {

using namespace std::chrono_literals;

using Flags = std::array<uint32_t, 5>;

bool all_are(Flags& flags, uint32_t value) {
  return std::ranges::all_of(flags, [&](uint32_t& flag) { return std::atomic_ref(flag).load() == value; });
}

bool become(Flags& flags, uint32_t value) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!all_are(flags, value)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

void take(Flags& flags) {
  for (uint32_t& flag : flags) std::atomic_ref(flag).store(0);
}

TEST(WaitEnder, stores_again_whatever_has_been_taken) {
  ASSERT_TRUE(WaitEnder::prepare().ok());
  Flags flags{}, others{};
  WaitEnder ender(flags);
  const WaitEnder idle(others);
  ender.begin();
  for (int again = 0; again < 10; ++again) {
    EXPECT_TRUE(become(flags, 1));
    take(flags);
  }
  EXPECT_TRUE(become(flags, 1));
  EXPECT_TRUE(all_are(others, 0));
}

TEST(WaitEnder, leaves_the_flags_alone_once_it_is_gone) {
  ASSERT_TRUE(WaitEnder::prepare().ok());
  Flags flags{}, others{};
  std::optional<WaitEnder> gone(std::in_place, flags);
  WaitEnder other(others);
  gone->begin();
  other.begin();
  EXPECT_TRUE(become(flags, 1));
  gone.reset();
  take(flags);
  for (int again = 0; again < 5; ++again) {
    take(others);
    EXPECT_TRUE(become(others, 1));
  }
  EXPECT_TRUE(all_are(flags, 0));
}

}  // namespace
}  // namespace axon::gpu_comm
