#include "base/published.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

namespace axon {
namespace {

struct Pair {
  std::array<uint64_t, 20> equal{};
  uint8_t odd_size = 0;
};

TEST(Published, holds_the_initial_value_and_then_the_latest) {
  Published<int> number(3);
  EXPECT_EQ(number.read(), 3);
  number.publish(4);
  number.publish(5);
  EXPECT_EQ(number.read(), 5);
}

TEST(Published, readers_see_whole_values_that_never_go_back) {
  static constexpr uint64_t kLast = 200'000;
  Published<Pair> pair;
  std::thread publisher([&] {
    for (uint64_t i = 1; i <= kLast; ++i) {
      Pair next{.odd_size = static_cast<uint8_t>(i)};
      next.equal.fill(i);
      pair.publish(next);
    }
  });
  for (uint64_t seen = 0; seen < kLast;) {
    const Pair read = pair.read();
    for (const uint64_t each : read.equal) ASSERT_EQ(each, read.equal[0]);
    ASSERT_EQ(read.odd_size, static_cast<uint8_t>(read.equal[0]));
    ASSERT_GE(read.equal[0], seen);
    seen = read.equal[0];
  }
  publisher.join();
}

}  // namespace
}  // namespace axon
