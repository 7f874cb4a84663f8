// Tests that the entries of a chunked table are those of an array, and that only what is written takes memory.
#include "base/chunked_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/intrusive_list.hpp"

namespace axon {
namespace {

struct Counts {
  int left = 0;
  int taken = 0;
};

struct alignas(64) Line {
  uint64_t value = 0;
};

TEST(ChunkedTableTest, entries_begin_as_the_initial_one) {
  ChunkedTable<Counts> table(100, {.left = 7});
  EXPECT_EQ(table.size(), 100u);
  EXPECT_EQ(table[99].left, 7);
  table.writable(40).left = 1;
  EXPECT_EQ(table[40].left, 1);
  EXPECT_EQ(table[41].left, 7);  // of the same chunk
  EXPECT_EQ(table[0].left, 7);
}

TEST(ChunkedTableTest, reads_allocate_nothing_and_writes_one_chunk) {
  ChunkedTable<Counts> table(1000);
  const Counts* const absent = &table[0];
  EXPECT_EQ(&table[999], absent);
  table.writable(500).taken = 3;
  EXPECT_EQ(&table[0], absent);
  EXPECT_NE(&table[500], absent);
  EXPECT_EQ(&table[500], &table.writable(500));
}

TEST(ChunkedTableTest, references_stay_valid) {
  ChunkedTable<Line> table(64);
  Line& first = table.writable(3);
  for (size_t index = 0; index < table.size(); ++index) table.writable(index).value = index;
  EXPECT_EQ(first.value, 3u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(&first) % 64, 0u);
}

TEST(ChunkedTableTest, visits_written_chunks_in_order_and_nothing_beyond_the_end) {
  ChunkedTable<Counts> table(35);
  table.writable(34).taken = 1;
  table.writable(2).taken = 2;
  std::vector<size_t> visited;
  int sum = 0;
  table.for_each_written([&](size_t index, const Counts& counts) {
    visited.push_back(index);
    sum += counts.taken;
  });
  EXPECT_EQ(visited.size(), 16u + 3u);
  EXPECT_EQ(visited.front(), 0u);
  EXPECT_EQ(visited[16], 32u);
  EXPECT_EQ(visited.back(), 34u);
  EXPECT_EQ(sum, 3);
}

TEST(ChunkedTableTest, holds_what_cannot_be_copied) {
  struct Item : ListNode<Item> {};
  ChunkedTable<IntrusiveList<Item>> lists(20);
  EXPECT_TRUE(lists[17].empty());
  Item item;
  lists.writable(17).push_back(item);
  EXPECT_FALSE(lists[17].empty());
  EXPECT_TRUE(lists[16].empty());
  item.unlink();
}

}  // namespace
}  // namespace axon
