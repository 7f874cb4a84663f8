// Tests how the segments of a relayed operation are divided, and in which order they pass through the slots.
#include <gtest/gtest.h>

#include <vector>

#include "gpu_comm/relay/division.hpp"
#include "gpu_comm/relay/two_step_order.hpp"

namespace axon::gpu_comm {
namespace {

TEST(TwoStepOrder, each_segment_has_both_steps_far_enough_apart) {
  for (size_t num_segments = 1; num_segments <= 20; ++num_segments) {
    for (size_t num_slots = 1; num_slots <= std::min<size_t>(num_segments, 4); ++num_slots) {
      const TwoStepOrder order(num_segments, num_slots);
      ASSERT_EQ(order.count(), 2 * num_segments);
      std::vector<size_t> first(num_segments, SIZE_MAX);
      std::vector<size_t> second(num_segments, SIZE_MAX);
      for (size_t position = 0; position < order.count(); ++position) {
        const auto [segment, is_second] = order[position];
        ASSERT_LT(segment, num_segments);
        size_t& place = is_second ? second[segment] : first[segment];
        ASSERT_EQ(place, SIZE_MAX) << "twice";
        place = position;
      }
      for (size_t segment = 0; segment < num_segments; ++segment) {
        EXPECT_GE(second[segment], first[segment] + num_slots) << segment << " of " << num_segments;
      }
    }
  }
}

// The parts of all columns follow one another and cover the tensor.
void expect_cover(const Division& division, size_t num_bytes, int num_columns) {
  size_t end = 0;
  for (size_t part = 0; part < division.num_parts(); ++part) {
    for (int column = 0; column < num_columns; ++column) {
      const collectives::Range range = division.column(column, num_columns).part(num_bytes, part);
      if (range.length == 0) continue;
      EXPECT_EQ(range.begin, end);
      EXPECT_LE(range.length, division.column(column, num_columns).longest_part(num_bytes));
      end = range.begin + range.length;
    }
    EXPECT_EQ(division.column(num_columns, num_columns).part(num_bytes, part).length, 0u) << "no such column";
  }
  EXPECT_EQ(end, num_bytes);
}

TEST(Division, parts_cover_a_shard_of_any_length) {
  for (const size_t num_bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1'000'003}}) {
    for (const int num_columns : {1, 2, 3}) {
      expect_cover(Division::into(1), num_bytes, num_columns);
      expect_cover(Division::into(7), num_bytes, num_columns);
      expect_cover(Division::of_length(4096, num_bytes / 4096 + 1), num_bytes, num_columns);
    }
  }
}

TEST(Division, a_shard_may_end_before_the_last_part) {
  const Division division = Division::of_length(100, 5);
  EXPECT_EQ(division.part(250, 2), (collectives::Range{200, 50}));
  EXPECT_EQ(division.part(250, 3).length, 0u);
  EXPECT_EQ(division.part(250, 4).length, 0u);
}

}  // namespace
}  // namespace axon::gpu_comm
