// Tests which ranks of a group are connected without a message, and that notices reach all ranks that are left.
#include "engine/overlay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <deque>

namespace axon::engine {
namespace {

// Returns by rank after how many steps a notice of rank `first` arrives; −1: never.
std::vector<int> steps_from(int first, int size, const std::vector<bool>& is_gone) {
  std::vector<int> steps(static_cast<size_t>(size), -1);
  steps[static_cast<size_t>(first)] = 0;
  std::deque<int> told{first};
  while (!told.empty()) {
    const int rank = told.front();
    told.pop_front();
    for (const int other : overlay::notified_by(rank, size)) {
      const auto index = static_cast<size_t>(other);
      if (is_gone[index] || steps[index] >= 0) continue;
      steps[index] = steps[static_cast<size_t>(rank)] + 1;
      told.push_back(other);
    }
  }
  return steps;
}

TEST(Overlay, small_groups_are_fully_connected) {
  for (const int size : {1, 2, 32}) {
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(overlay::watched_by(rank, size).size(), static_cast<size_t>(size - 1));
      EXPECT_EQ(overlay::notified_by(rank, size), overlay::watched_by(rank, size));
    }
  }
}

TEST(Overlay, each_rank_of_a_large_group_has_few_others) {
  for (const int size : {33, 64, 100, 4096}) {
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<int> watched = overlay::watched_by(rank, size);
      const std::vector<int> notified = overlay::notified_by(rank, size);
      EXPECT_EQ(watched.size(), 2u);
      EXPECT_LE(notified.size(), 2u * static_cast<unsigned>(std::bit_width(static_cast<unsigned>(size))));
      EXPECT_TRUE(std::ranges::includes(notified, watched));
      EXPECT_TRUE(std::ranges::is_sorted(notified));
      EXPECT_EQ(std::ranges::count(notified, rank), 0);
      for (const int other : notified) EXPECT_EQ(std::ranges::count(overlay::notified_by(other, size), rank), 1);
    }
  }
}

TEST(Overlay, notices_reach_all_ranks_in_a_logarithm_of_steps) {
  for (const int size : {33, 100, 1000, 4096}) {
    const std::vector<int> steps = steps_from(7, size, std::vector<bool>(static_cast<size_t>(size)));
    EXPECT_GE(std::ranges::min(steps), 0);
    EXPECT_LE(std::ranges::max(steps), std::bit_width(static_cast<unsigned>(size)));
  }
}

TEST(Overlay, notices_reach_all_that_are_left_if_hosts_are_gone) {
  constexpr int kSize = 512;
  std::vector<bool> is_gone(kSize);
  for (int rank = 64; rank < 192; ++rank) is_gone[static_cast<size_t>(rank)] = true;  // one rack
  for (int rank = 0; rank < kSize; rank += 3) is_gone[static_cast<size_t>(rank)] = true;
  const std::vector<int> steps = steps_from(1, kSize, is_gone);
  for (size_t rank = 0; rank < kSize; ++rank) EXPECT_EQ(steps[rank] < 0, is_gone[rank]) << rank;
}

}  // namespace
}  // namespace axon::engine
