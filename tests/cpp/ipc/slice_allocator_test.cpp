#include "ipc/slice_allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace axon {
namespace {

constexpr size_t kUnit = BlockAllocator::kUnit;

TEST(BlockAllocator, first_groups_get_much_and_later_ones_little) {
  BlockAllocator allocator(kUnit, 64 * kUnit);
  EXPECT_EQ(allocator.take()->num_bytes, BlockAllocator::kLargeBlock);
  EXPECT_EQ(allocator.take()->num_bytes, BlockAllocator::kLargeBlock);
  for (int group = 0; group < 31; ++group) EXPECT_EQ(allocator.take()->num_bytes, BlockAllocator::kSmallBlock) << group;
  EXPECT_FALSE(allocator.take().has_value());
  EXPECT_EQ(allocator.num_bytes_taken(), 63 * kUnit);
}

TEST(BlockAllocator, small_arenas_have_small_blocks_only) {
  BlockAllocator allocator(kUnit, 8 * kUnit);
  for (int group = 0; group < 7; ++group) EXPECT_EQ(allocator.take()->num_bytes, BlockAllocator::kSmallBlock) << group;
  EXPECT_FALSE(allocator.take().has_value());
}

TEST(BlockAllocator, nothing_comes_of_nothing) {
  EXPECT_FALSE(BlockAllocator(kUnit, kUnit).take().has_value());
  EXPECT_FALSE(BlockAllocator(kUnit, 0).take().has_value());
}

TEST(BlockAllocator, blocks_that_came_back_are_handed_out_again) {
  BlockAllocator allocator(kUnit, 64 * kUnit);
  for (int group = 0; group < 1000; ++group) {
    const std::optional<ArenaBlock> block = allocator.take();
    ASSERT_TRUE(block.has_value()) << group;
    EXPECT_EQ(block->num_bytes, BlockAllocator::kLargeBlock) << group;
    allocator.give_back(*block);
  }
}

// Whatever the order, blocks lie within the arena and do not overlap, and all room comes back.
TEST(BlockAllocator, blocks_never_overlap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  BlockAllocator allocator(kUnit, 64 * kUnit);
  std::vector<ArenaBlock> taken;
  for (int step = 0; step < 10'000; ++step) {
    if (random() % 2 == 0) {
      if (const auto block = allocator.take()) taken.push_back(*block);
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      allocator.give_back(taken.back());
      taken.pop_back();
    }
    std::ranges::sort(taken, {}, &ArenaBlock::offset);
    size_t end = kUnit;
    size_t sum = 0;
    for (const ArenaBlock& block : taken) {
      ASSERT_GE(block.offset, end);
      end = block.offset + block.num_bytes;
      sum += block.num_bytes;
    }
    ASSERT_LE(end, 64 * kUnit);
    ASSERT_EQ(allocator.num_bytes_taken(), sum);
  }
}

}  // namespace
}  // namespace axon
