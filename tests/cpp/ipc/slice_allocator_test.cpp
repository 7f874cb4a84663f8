#include "ipc/slice_allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace axon::ipc {
namespace {

constexpr size_t kUnit = SliceAllocator::kUnit;

TEST(SliceAllocator, first_groups_get_much_and_later_ones_little) {
  SliceAllocator allocator(kUnit, 64 * kUnit);
  EXPECT_EQ(allocator.take()->num_bytes, SliceAllocator::kLargeSlice);
  EXPECT_EQ(allocator.take()->num_bytes, SliceAllocator::kLargeSlice);
  for (int group = 0; group < 31; ++group) EXPECT_EQ(allocator.take()->num_bytes, SliceAllocator::kSmallSlice) << group;
  EXPECT_FALSE(allocator.take().has_value());
  EXPECT_EQ(allocator.num_bytes_taken(), 63 * kUnit);
}

TEST(SliceAllocator, small_arenas_have_small_slices_only) {
  SliceAllocator allocator(kUnit, 8 * kUnit);
  for (int group = 0; group < 7; ++group) EXPECT_EQ(allocator.take()->num_bytes, SliceAllocator::kSmallSlice) << group;
  EXPECT_FALSE(allocator.take().has_value());
}

TEST(SliceAllocator, nothing_comes_of_nothing) {
  EXPECT_FALSE(SliceAllocator(kUnit, kUnit).take().has_value());
  EXPECT_FALSE(SliceAllocator(kUnit, 0).take().has_value());
}

TEST(SliceAllocator, slices_that_came_back_are_handed_out_again) {
  SliceAllocator allocator(kUnit, 64 * kUnit);
  for (int group = 0; group < 1000; ++group) {
    const std::optional<ArenaSlice> slice = allocator.take();
    ASSERT_TRUE(slice.has_value()) << group;
    EXPECT_EQ(slice->num_bytes, SliceAllocator::kLargeSlice) << group;
    allocator.give_back(*slice);
  }
}

// In whatever order, slices lie within the arena and do not overlap, and all memory returns.
TEST(SliceAllocator, slices_never_overlap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  SliceAllocator allocator(kUnit, 64 * kUnit);
  std::vector<ArenaSlice> taken;
  for (int step = 0; step < 10'000; ++step) {
    if (random() % 2 == 0) {
      if (const auto slice = allocator.take()) taken.push_back(*slice);
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      allocator.give_back(taken.back());
      taken.pop_back();
    }
    std::ranges::sort(taken, {}, &ArenaSlice::offset);
    size_t end = kUnit;
    size_t sum = 0;
    for (const ArenaSlice& slice : taken) {
      ASSERT_GE(slice.offset, end);
      end = slice.offset + slice.num_bytes;
      sum += slice.num_bytes;
    }
    ASSERT_LE(end, 64 * kUnit);
    ASSERT_EQ(allocator.num_bytes_taken(), sum);
  }
}

}  // namespace
}  // namespace axon::ipc
