// Tests where blocks lie that are laid out or listed, and which blocks of a plan move as one.
#include "rpc/core/one_sided/block_lists.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "rpc/core/one_sided/address_ranges.hpp"
#include "rpc/core/one_sided/transfer_plan.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

std::array<std::byte, 4096> memory_a;
std::array<std::byte, 4096> memory_b;

LocalBlocks::Block part(std::span<std::byte> bytes, int32_t device = -1) {
  return {.data = bytes.data(), .num_bytes = bytes.size(), .device = device};
}

// Remote memory needs a connection, which is told of its end.
class BlockListsTest : public testing::Test {
 protected:
  std::shared_ptr<RemoteMemory> remote_of(uint64_t num_bytes) {
    GrantInfo info;
    info.prefix.num_bytes = num_bytes;
    return std::make_shared<RemoteMemory>(pair_.to_server, 1, std::move(info));
  }

 private:
  transport::LoopbackFabric fabric_{{.mailbox_capacity = 1 << 20}};
  TwoRuntimes pair_{engine::loopback_transports(fabric_, 2)};
};
using RemoteBlocksTest = BlockListsTest;
using TransferPlanTest = BlockListsTest;

TEST(LocalBlocks, listed_blocks_are_in_their_memories_and_parts) {
  const LocalBlocks::Memory two_parts{part(std::span(memory_a).first(1000)), part(std::span(memory_a).last(1000), 1)};
  const std::vector<LocalBlocks::Memory> memories{two_parts, {part(memory_b, 2)}};
  const std::vector<BlockRow> table{{0, 1000, 8}, {1, 4095, 1}, {0, 0, 1000}, {0, 1999, 1}, {0, 2000, 0}};
  const LocalBlocks blocks = LocalBlocks::listed(memories, table).value();
  ASSERT_EQ(blocks.size(), table.size());
  EXPECT_EQ(blocks[0].data, memory_a.data() + 3096);
  EXPECT_EQ(blocks[0].device, 1);
  EXPECT_EQ(blocks[1].data, memory_b.data() + 4095);
  EXPECT_EQ(blocks[1].device, 2);
  EXPECT_EQ(blocks[2].data, memory_a.data());
  EXPECT_EQ(blocks[3].data, memory_a.data() + 4095);
  EXPECT_EQ(blocks[4].num_bytes, 0u);
}

TEST(LocalBlocks, rows_outside_their_memories_are_refused_by_number) {
  const std::vector<LocalBlocks::Memory> memories{
      {part(std::span(memory_a).first(100)), part(std::span(memory_b).first(100))}};
  const auto why = [&](const BlockRow& row) {
    return LocalBlocks::listed(memories, std::vector<BlockRow>{{0, 0, 1}, row}).status().message();
  };
  EXPECT_EQ(why({1, 0, 1}), "plan: local block 1 is in memory 1; allowed: 0 to 1, exclusive");
  EXPECT_EQ(why({0, 150, 51}), "plan: local block 1, of 51 bytes at offset 150, exceeds memory 0 of 200 bytes");
  EXPECT_EQ(why({0, UINT64_MAX, 2}),
            "plan: local block 1, of 2 bytes at offset 18446744073709551615, exceeds memory 0 of 200 bytes");
  EXPECT_EQ(why({0, 99, 2}),
            "plan: local block 1 crosses the end of part 0; allowed: blocks within one part of the memory");
}

TEST_F(RemoteBlocksTest, listed_blocks_count_from_their_slices) {
  std::vector<RemoteBlocks::Memory> memories{{remote_of(1000), 0, 1000}, {remote_of(5000), 1000, 50}};
  const RemoteBlocks blocks = RemoteBlocks::listed(memories, std::vector<BlockRow>{{1, 49, 1}, {0, 0, 1000}}).value();
  EXPECT_EQ(blocks[0].offset, 1049u);
  EXPECT_EQ(blocks.memory_of(blocks[0]), memories[1].memory);
  EXPECT_EQ(blocks.memory_of(blocks[1]), memories[0].memory);
  EXPECT_EQ(RemoteBlocks::listed(memories, std::vector<BlockRow>{{1, 49, 2}}).status().message(),
            "plan: remote block 0, of 2 bytes at offset 49, exceeds memory 1 of 50 bytes");
}

struct Moved {
  uint64_t offset;
  uint64_t begin;  // in the local memory
  uint64_t num_bytes;
  auto operator<=>(const Moved&) const = default;
};

std::vector<Moved> moved_by(const TransferPlan& plan, const std::vector<int32_t>& local,
                            const std::vector<int32_t>& remote) {
  std::vector<Moved> moved;
  const Status status = plan.check(local, remote);
  EXPECT_TRUE(status.ok()) << status.message();
  plan.for_each(local, remote,
                [&](const std::shared_ptr<RemoteMemory>&, uint64_t offset, const LocalBlocks::Block& here) {
                  moved.push_back({offset, static_cast<uint64_t>(here.data - memory_a.data()), here.num_bytes});
                });
  return moved;
}

TEST_F(TransferPlanTest, neighbours_on_both_sides_move_as_one) {
  const BlockLayout layout{.offset = 0, .num_bytes = 16, .stride = 16, .count = 8};
  const TransferPlan plan = TransferPlan::make(LocalBlocks::laid_out({part(memory_a)}, layout).value(),
                                               RemoteBlocks::laid_out({remote_of(4096), 0, 4096}, layout).value())
                                .value();
  EXPECT_EQ(moved_by(plan, {0, 1, 2, 3}, {4, 5, 6, 7}), (std::vector<Moved>{{64, 0, 64}}));
  EXPECT_EQ(moved_by(plan, {0, 1, 2}, {4, 6, 7}), (std::vector<Moved>{{64, 0, 16}, {96, 16, 32}}));
  EXPECT_EQ(moved_by(plan, {0, 2}, {4, 5}), (std::vector<Moved>{{64, 0, 16}, {80, 32, 16}}));
  EXPECT_EQ(moved_by(plan, {1, 0}, {1, 0}), (std::vector<Moved>{{16, 16, 16}, {0, 0, 16}}));
  EXPECT_EQ(moved_by(plan, {}, {}), std::vector<Moved>{});
}

TEST_F(TransferPlanTest, neighbours_in_different_parts_or_memories_stay_apart) {
  const std::vector<LocalBlocks::Memory> here{{part(std::span(memory_a).first(16))},
                                              {part(std::span(memory_a).subspan(16, 16))}};
  const std::vector<BlockRow> rows{{0, 0, 16}, {1, 0, 16}};
  const RemoteBlocks one = RemoteBlocks::laid_out({remote_of(32), 0, 32}, {0, 16, 16, 2}).value();
  const TransferPlan by_part = TransferPlan::make(LocalBlocks::listed(here, rows).value(), one).value();
  EXPECT_EQ(moved_by(by_part, {0, 1}, {0, 1}).size(), 2u);
  const RemoteBlocks two = RemoteBlocks::listed({{remote_of(16), 0, 16}, {remote_of(32), 0, 32}},
                                                std::vector<BlockRow>{{0, 0, 16}, {1, 16, 16}})
                               .value();
  const TransferPlan by_memory =
      TransferPlan::make(LocalBlocks::laid_out({part(memory_a)}, {0, 16, 16, 2}).value(), two).value();
  EXPECT_EQ(moved_by(by_memory, {0, 1}, {0, 1}).size(), 2u);
}

TEST_F(TransferPlanTest, only_memories_of_the_given_blocks_are_used) {
  const std::vector<RemoteBlocks::Memory> memories{
      {remote_of(16), 0, 16}, {remote_of(16), 0, 16}, {remote_of(16), 0, 16}};
  const std::vector<BlockRow> rows{{0, 0, 8}, {1, 0, 8}, {2, 0, 8}, {2, 8, 8}};
  const TransferPlan plan = TransferPlan::make(LocalBlocks::laid_out({part(memory_a)}, {0, 8, 8, 4}).value(),
                                               RemoteBlocks::listed(memories, rows).value())
                                .value();
  EXPECT_EQ(plan.memories_of(std::vector<int32_t>{3, 0, 2}),
            (std::vector<std::shared_ptr<RemoteMemory>>{memories[0].memory, memories[2].memory}));
}

TEST_F(TransferPlanTest, pairs_of_different_lengths_are_refused) {
  const std::vector<BlockRow> rows{{0, 0, 16}, {0, 16, 8}};
  const TransferPlan plan =
      TransferPlan::make(LocalBlocks::listed(std::vector<LocalBlocks::Memory>{{part(memory_a)}}, rows).value(),
                         RemoteBlocks::listed({{remote_of(32), 0, 32}}, rows).value())
          .value();
  EXPECT_EQ(moved_by(plan, {0, 1}, {0, 1}), (std::vector<Moved>{{0, 0, 24}}));
  EXPECT_EQ(plan.check(std::vector<int32_t>{0, 1}, std::vector<int32_t>{0, 0}).message(),
            "post: pair 1 is a local block of 8 bytes and a remote one of 16; allowed: equal lengths");
}

// ---- Ranges of addresses

std::vector<BlockRow> located(const std::vector<AddressRange>& known, const std::vector<AddressRange>& wanted) {
  std::vector<BlockRow> rows(wanted.size());
  rows.resize(AddressRanges(known).locate(wanted, rows.data()));
  return rows;
}

TEST(AddressRanges, ranges_are_found_in_the_memory_that_contains_them) {
  const std::vector<AddressRange> known{{5000, 100, 0}, {1000, 100, 0}, {1100, 100, 0}, {1000, 50, 1}};
  EXPECT_EQ(located(known, {{1000, 100, 0}, {1199, 1, 0}, {1000, 50, 1}, {5050, 50, 0}, {1200, 0, 0}}),
            (std::vector<BlockRow>{{1, 0, 100}, {2, 99, 1}, {3, 0, 50}, {0, 50, 50}, {2, 100, 0}}));
}

TEST(AddressRanges, ranges_in_no_memory_are_not_found) {
  const std::vector<AddressRange> known{{1000, 100, 0}, {1100, 100, 0}};
  for (const AddressRange wrong : {AddressRange{999, 1, 0},
                                   {1050, 100, 0},
                                   {1199, 2, 0},
                                   {1000, 1, 1},
                                   {1201, 0, 0},
                                   {1150, UINT64_MAX, 0},
                                   {UINT64_MAX, 2, 0}}) {
    EXPECT_EQ(located(known, {{1000, 1, 0}, wrong}).size(), 1u) << wrong.address;
  }
  EXPECT_TRUE(located({}, {{1, 1, 0}}).empty());
}

TEST(AddressRanges, ranges_are_found_where_memories_overlap) {
  const std::vector<AddressRange> known{{1000, 1000, 0}, {1100, 10, 0}, {1200, 10, 0}};
  EXPECT_EQ(located(known, {{1205, 5, 0}, {1205, 6, 0}, {1105, 100, 0}}),
            (std::vector<BlockRow>{{2, 5, 5}, {0, 205, 6}, {0, 105, 100}}));
}

}  // namespace
}  // namespace axon::rpc
