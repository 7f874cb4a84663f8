// Tests how a list of blocks is cut into units of work, and that the kernel copies each of its bytes and nothing more.
#include "kernels/copy_blocks.hpp"

#include <numeric>
#include <optional>

#include "cuda/memory.hpp"
#include "kernels/device_buffer.hpp"

namespace axon::testing {
namespace {

using kernels::BlockCopy;

std::byte* place(uint64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

// The units of each block follow one another, and have its bytes.
TEST(BlockUnits, cover_each_block_once) {
  std::mt19937_64 random(20261127);
  for (const size_t count : {1, 3, 100, 5000}) {
    for (const uint64_t longest : {1ul, 5000ul, 1ul << 20, 3ul << 30}) {
      std::vector<BlockCopy> blocks;
      for (size_t i = 0; i < count; ++i) {
        blocks.push_back(
            {.source = place(random() >> 8), .target = place(random() >> 8), .num_bytes = 1 + random() % longest});
      }
      const kernels::BlockUnits units = kernels::plan_units(blocks);
      if (units.count > 4'000'000) continue;  // 5,000 blocks of gigabytes
      std::vector<BlockCopy> table(units.count);
      kernels::fill_units(blocks, units, table.data());
      size_t next = 0;
      for (const BlockCopy& block : blocks) {
        for (uint64_t begin = 0; begin < block.num_bytes; ++next) {
          ASSERT_LT(next, table.size());
          ASSERT_EQ(table[next].source, block.source + begin);
          ASSERT_EQ(table[next].target, block.target + begin);
          ASSERT_GT(table[next].num_bytes, 0u);
          ASSERT_LE(table[next].num_bytes, units.num_bytes);
          begin += table[next].num_bytes;
          ASSERT_LE(begin, block.num_bytes);
        }
      }
      EXPECT_EQ(next, table.size());
    }
  }
}

TEST(BlockUnits, give_work_to_many_warps) {
  const BlockCopy large{.source = place(1 << 20), .target = place(1 << 30), .num_bytes = uint64_t{256} << 20};
  EXPECT_GE(kernels::plan_units({&large, 1}).count, 3000u);
  const std::vector<BlockCopy> small(32'768, {.source = place(4096), .target = place(8192), .num_bytes = 4096});
  EXPECT_LE(kernels::plan_units(small).count, 2 * small.size());
}

class CopyBlocks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
    guard_.emplace(0);
    stream_.emplace(require(cuda::Stream::create()));
  }

  void copy(const std::vector<BlockCopy>& blocks) {
    const kernels::BlockUnits units = kernels::plan_units(blocks);
    const auto table = require(cuda::PinnedMemory::allocate(std::max<size_t>(units.count, 1) * sizeof(BlockCopy)));
    auto* const entries = reinterpret_cast<BlockCopy*>(table.data());
    kernels::fill_units(blocks, units, entries);
    require(kernels::copy_blocks(entries, units.count, *stream_));
    require(stream_->view().synchronize());
  }

  std::optional<cuda::DeviceGuard> guard_;
  std::optional<cuda::Stream> stream_;
  std::mt19937 random_{20261127};
};

TEST_F(CopyBlocks, of_any_length_from_and_to_any_offset) {
  for (const size_t num_bytes : {1, 2, 15, 16, 17, 31, 1000, 2047, 2048, 2049, 65'537, 1'000'003}) {
    for (const size_t from : {0, 1, 2, 4, 8, 15}) {
      for (const size_t to : {0, 1, 2, 4, 8, 15}) {
        const Bytes data = random_bytes(num_bytes, random_);
        const DeviceBuffer source(num_bytes, from);
        const DeviceBuffer target(num_bytes, to);
        source.upload(data);
        copy({{.source = source.data(), .target = target.data(), .num_bytes = num_bytes}});
        target.expect_contents(
            data, std::to_string(num_bytes) + " from " + std::to_string(from) + " to " + std::to_string(to));
      }
    }
  }
}

TEST_F(CopyBlocks, of_a_long_list_in_any_order) {
  constexpr size_t kCount = 20'000;
  std::vector<size_t> lengths(kCount);
  for (size_t& length : lengths) length = 1 + random_() % 3000;
  const Bytes data = random_bytes(std::accumulate(lengths.begin(), lengths.end(), size_t{0}), random_);
  const DeviceBuffer source(data.size(), 3);
  const DeviceBuffer target(data.size(), 8);
  source.upload(data);
  std::vector<BlockCopy> blocks;
  size_t begin = 0;
  for (const size_t length : lengths) {
    blocks.push_back({.source = source.data() + begin, .target = target.data() + begin, .num_bytes = length});
    begin += length;
  }
  std::ranges::shuffle(blocks, random_);
  copy(blocks);
  target.expect_contents(data, "a list");
}

TEST_F(CopyBlocks, from_and_to_pinned_memory) {
  const Bytes data = random_bytes(5'000'000, random_);
  const auto pinned = require(cuda::PinnedMemory::allocate(2 * data.size()));
  const DeviceBuffer between(data.size());
  std::copy(data.begin(), data.end(), pinned.data());
  copy({{.source = pinned.data(), .target = between.data(), .num_bytes = data.size()}});
  std::byte* const back = pinned.data() + data.size();
  copy({{.source = between.data(), .target = back, .num_bytes = data.size()}});
  EXPECT_TRUE(std::equal(data.begin(), data.end(), back));
}

TEST_F(CopyBlocks, of_nothing) {
  copy({});
}

}  // namespace
}  // namespace axon::testing
