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

using Words = std::array<uint32_t, 5>;

bool all_are(Words& words, uint32_t value) {
  return std::ranges::all_of(words, [&](uint32_t& word) { return std::atomic_ref(word).load() == value; });
}

bool become(Words& words, uint32_t value) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!all_are(words, value)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

void take(Words& words) {
  for (uint32_t& word : words) std::atomic_ref(word).store(0);
}

TEST(WaitEnder, stores_again_whatever_has_been_taken) {
  ASSERT_TRUE(WaitEnder::prepare().ok());
  Words words{}, others{};
  WaitEnder ender(words);
  const WaitEnder idle(others);
  ender.begin();
  for (int again = 0; again < 10; ++again) {
    EXPECT_TRUE(become(words, 1));
    take(words);
  }
  EXPECT_TRUE(become(words, 1));
  EXPECT_TRUE(all_are(others, 0));
}

TEST(WaitEnder, leaves_the_words_alone_once_it_is_gone) {
  ASSERT_TRUE(WaitEnder::prepare().ok());
  Words words{}, others{};
  std::optional<WaitEnder> gone(std::in_place, words);
  WaitEnder other(others);
  gone->begin();
  other.begin();
  EXPECT_TRUE(become(words, 1));
  gone.reset();
  take(words);
  for (int again = 0; again < 5; ++again) {
    take(others);
    EXPECT_TRUE(become(others, 1));
  }
  EXPECT_TRUE(all_are(words, 0));
}

}  // namespace
}  // namespace axon::gpu_comm
