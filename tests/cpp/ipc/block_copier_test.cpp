// Tests when copies of blocks run.
#include "ipc/block_copier.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "comes_true.hpp"
#include "cuda/memops.hpp"
#include "kernels/device_buffer.hpp"

namespace axon::ipc {
namespace {

using namespace std::chrono_literals;
using testing::require;

class BlockCopierTest : public ::testing::Test {
 protected:
  static constexpr size_t kNumBytes = 1 << 20;
  static constexpr size_t kNumCopies = 40;  // more than there are streams for them

  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
    guard_.emplace(0);
    copier_ = require(BlockCopier::of(0));
    source_.emplace(kNumBytes);
    target_.emplace(kNumBytes);
  }

  // Copies all bytes in blocks of a length.
  BlockCopier::UnderWay copy(size_t length, std::optional<cuda::StreamView> after = std::nullopt) {
    const auto fill = [&, length]() -> Result<BlockCopier::Blocks> {
      ++num_filled_;
      BlockCopier::Blocks blocks;
      for (size_t begin = 0; begin < kNumBytes; begin += length) {
        blocks.push_back({.source = source_->data() + begin, .target = target_->data() + begin, .num_bytes = length});
      }
      return blocks;
    };
    return require(copier_->copy({.fill = fill, .after = after}));
  }
  static bool ends(const BlockCopier::UnderWay& copy, std::chrono::seconds within = 30s) {
    return comes_true([&] { return copy.flag().load(std::memory_order_acquire) != 0; }, within);
  }

  std::optional<cuda::DeviceGuard> guard_;
  BlockCopier* copier_ = nullptr;
  std::optional<testing::DeviceBuffer> source_;
  std::optional<testing::DeviceBuffer> target_;
  size_t num_filled_ = 0;
};

// Parameter: the bytes of each block; copy engines copy a single block, and a kernel a list.
class StartsAtOnceTest : public BlockCopierTest, public ::testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(blocks_of_bytes, StartsAtOnceTest, ::testing::Values(1 << 20, 1 << 16));

TEST_P(StartsAtOnceTest, copies_that_start_at_once_wait_for_no_stream_of_the_caller) {
  const auto memory = require(cuda::PinnedMemory::allocate(sizeof(uint32_t)));
  auto* const gate = new (memory.data()) std::atomic<uint32_t>(0);
  const cuda::Stream busy = require(cuda::Stream::create());
  {  // What the copies need is allocated now, since that waits for a busy device.
    std::vector<BlockCopier::UnderWay> earlier;
    for (size_t i = 0; i < 2 * kNumCopies; ++i) {
      earlier.push_back(copy(GetParam(), i % 2 == 0 ? std::optional<cuda::StreamView>(busy) : std::nullopt));
    }
    for (const BlockCopier::UnderWay& each : earlier) ASSERT_TRUE(ends(each));
  }
  require(cuda::wait_for_flag(busy, gate, 1));
  std::vector<BlockCopier::UnderWay> waiting;
  for (size_t i = 0; i < kNumCopies; ++i) waiting.push_back(copy(GetParam(), busy));
  std::vector<BlockCopier::UnderWay> at_once;
  for (size_t i = 0; i < kNumCopies; ++i) at_once.push_back(copy(GetParam()));
  for (const BlockCopier::UnderWay& each : at_once) {
    if (!ends(each, 5s)) {
      ADD_FAILURE() << "a copy waits for the stream of the caller";
      break;
    }
  }
  for (const BlockCopier::UnderWay& each : waiting) EXPECT_EQ(each.flag().load(), 0u);
  gate->store(1, std::memory_order_release);
  for (const BlockCopier::UnderWay& each : waiting) EXPECT_TRUE(ends(each));
  for (const BlockCopier::UnderWay& each : at_once) EXPECT_TRUE(ends(each));
}

// Allocating may wait for a busy device. A launch that lacks memory begins again, after the allocation.
TEST_F(BlockCopierTest, tables_are_allocated_apart_from_launches) {
  const BlockCopier::UnderWay first = copy(2);  // its table has 12 MiB: no other copy has left one
  EXPECT_GE(num_filled_, 2u);
  EXPECT_LE(num_filled_, 3u);  // another time for a stream
  ASSERT_TRUE(ends(first));
  require(cudaDeviceSynchronize());  // its stream is idle, so the next copies need no further one
  const size_t before = num_filled_;
  {
    const BlockCopier::UnderWay second = copy(2);  // the first one still has its table
    EXPECT_EQ(num_filled_, before + 2);
    ASSERT_TRUE(ends(second));
    require(cudaDeviceSynchronize());
  }
  const BlockCopier::UnderWay third = copy(2);
  EXPECT_EQ(num_filled_, before + 3);
  ASSERT_TRUE(ends(third));
}

// A kernel that uses no valid address makes the device unusable for this process, so another one does it.
[[noreturn]] void copy_from_nowhere() {
  const cuda::DeviceGuard guard(0);
  BlockCopier& copier = *require(BlockCopier::of(0));
  const testing::DeviceBuffer target(2);
  const auto nowhere = [&]() -> Result<BlockCopier::Blocks> {
    const auto* const source = reinterpret_cast<const std::byte*>(16);
    return BlockCopier::Blocks(2, {.source = source, .target = target.data(), .num_bytes = 1});
  };
  const auto copy = new BlockCopier::UnderWay(require(copier.copy({.fill = nowhere})));
  const Status ended = copy->wait();
  (void)std::fprintf(stderr, "ended: %s\n", ended.message().c_str());
  std::quick_exit(ended.ok() ? 1 : 0);
}

TEST_F(BlockCopierTest, a_wait_ends_when_the_device_fails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a child of fork() cannot use CUDA
  EXPECT_EXIT(copy_from_nowhere(), ::testing::ExitedWithCode(0), "ended: .*illegal memory access");
}

}  // namespace
}  // namespace axon::ipc
