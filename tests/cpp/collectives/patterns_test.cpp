#include "collectives/patterns.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace axon::collectives {
namespace {

TEST(PartitionTest, covers_everything_in_order) {
  for (const size_t num_bytes : {0, 1, 63, 64, 65, 1000, 4096, 100001}) {
    for (int num_parts = 1; num_parts <= 17; ++num_parts) {
      const Partition parts(num_bytes, num_parts);
      size_t end = 0;
      for (int part = 0; part < num_parts; ++part) {
        EXPECT_EQ(parts[part].begin, end);
        end += parts[part].length;
      }
      EXPECT_EQ(end, num_bytes);
    }
  }
}

TEST(PartitionTest, cuts_at_granules_and_evenly) {
  const Partition parts(64 * 10 + 8, 4);
  EXPECT_EQ(parts[0], (Range{0, 192}));
  EXPECT_EQ(parts[2], (Range{384, 192}));
  EXPECT_EQ(parts[3], (Range{576, 72}));
}

TEST(PartitionTest, leaves_the_last_parts_empty_when_there_is_too_little) {
  const Partition parts(70, 4);
  EXPECT_EQ(parts[0].length, 64u);
  EXPECT_EQ(parts[1].length, 6u);
  EXPECT_EQ(parts[2].length, 0u);
  EXPECT_EQ(parts[3].length, 0u);
}

TEST(ChunksTest, an_empty_shard_is_one_empty_chunk) {
  const Chunks chunks(0, 64);
  EXPECT_EQ(chunks.count(), 1u);
  EXPECT_EQ(chunks[0], (Range{0, 0}));
  EXPECT_FALSE(chunks.contains(1));
}

TEST(ChunksTest, the_last_chunk_is_the_shorter) {
  const Chunks chunks(130, 64);
  EXPECT_EQ(chunks.count(), 3u);
  EXPECT_EQ(chunks[1], (Range{64, 64}));
  EXPECT_EQ(chunks[2], (Range{128, 2}));
  EXPECT_EQ(chunks[3].length, 0u);
}

TEST(RingTest, neighbours_wrap) {
  EXPECT_EQ(ring_neighbour(0, -1, 5), 4);
  EXPECT_EQ(ring_neighbour(4, 1, 5), 0);
  EXPECT_EQ(ring_neighbour(2, -5, 5), 2);
  EXPECT_EQ(ring_neighbour(0, 1, 1), 0);
}

TEST(RingScheduleTest, visits_every_step_of_every_chunk_once) {
  const RingSchedule schedule{.num_steps = 3, .group = 2, .num_chunks = 5};
  std::set<std::pair<int, size_t>> seen;
  for (size_t i = 0; i < schedule.count(); ++i) seen.insert({schedule[i].step, schedule[i].chunk});
  EXPECT_EQ(seen.size(), schedule.count());
  EXPECT_EQ(schedule.count(), 3u * 6u);  // the last group has a chunk that lies in no shard
  EXPECT_EQ(schedule[0], (RingSchedule::Item{0, 0}));
  EXPECT_EQ(schedule[3], (RingSchedule::Item{1, 1}));
  EXPECT_EQ(schedule[6], (RingSchedule::Item{0, 2}));
}

TEST(RingScheduleTest, a_chunk_is_one_step_further_a_group_later) {
  const RingSchedule schedule{.num_steps = 4, .group = 2, .num_chunks = 6};
  for (size_t i = schedule.group; i < schedule.count(); ++i) {
    if (schedule[i].step == 0) continue;
    EXPECT_EQ(schedule[i - schedule.group], (RingSchedule::Item{schedule[i].step - 1, schedule[i].chunk}));
  }
}

TEST(BinomialTreeTest, children_know_their_parent_and_all_are_reached) {
  for (int size = 1; size <= 33; ++size) {
    std::set<int> reached{0};
    for (int position = 0; position < size; ++position) {
      const BinomialTree tree{position, size};
      for (int mask = 1; mask < tree.child_limit(); mask *= 2) {
        if (!tree.has_child(mask)) continue;
        EXPECT_EQ((BinomialTree{position + mask, size}.parent()), position);
        EXPECT_TRUE(reached.insert(position + mask).second);
      }
    }
    EXPECT_EQ(reached.size(), static_cast<size_t>(size));
  }
}

TEST(PowerOfTwoFoldTest, active_ranks_have_consecutive_places_in_rank_order) {
  for (int size = 1; size <= 33; ++size) {
    int position = 0;
    for (int rank = 0; rank < size; ++rank) {
      const PowerOfTwoFold fold{rank, size};
      if (fold.is_represented()) {
        EXPECT_TRUE((PowerOfTwoFold{fold.pair_partner(), size}.is_paired()));
        EXPECT_EQ(fold.pair_partner(), rank - 1);
        continue;
      }
      EXPECT_EQ(fold.position(), position);
      EXPECT_EQ(fold.rank_at(position), rank);
      ++position;
    }
    EXPECT_EQ(position, (PowerOfTwoFold{0, size}.num_active()));
  }
}

}  // namespace
}  // namespace axon::collectives
