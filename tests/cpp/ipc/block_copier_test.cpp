// Tests what copies of blocks allocate, and how they end.
#include "ipc/block_copier.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "comes_true.hpp"
#include "kernels/device_buffer.hpp"

namespace axon::ipc {
namespace {

using namespace std::chrono_literals;
using testing::require;

class BlockCopierTest : public ::testing::Test {
 protected:
  static constexpr size_t kNumBytes = 1 << 20;

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

// Allocating may wait for a busy device. A launch that lacks memory begins again, after the allocation.
TEST_F(BlockCopierTest, tables_are_allocated_apart_from_launches) {
  std::vector<PinnedPool::Piece> left;  // by earlier tests: tables have 12 MiB
  while (auto piece = PinnedPool::instance().take_resting(12 << 20)) left.push_back(*std::move(piece));
  const BlockCopier::UnderWay first = copy(2);
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

// A stream that is busy until release().
class BusyStream {
 public:
  BusyStream() {
    const auto wait = [](void* released) { static_cast<std::atomic<bool>*>(released)->wait(false); };
    require(cudaLaunchHostFunc(stream_.view().get(), wait, &released_));
  }
  ~BusyStream() {
    release();
    require(stream_.view().synchronize());
  }
  void release() {
    released_.store(true);
    released_.notify_all();
  }
  cuda::StreamView view() const { return stream_; }

 private:
  cuda::Stream stream_ = require(cuda::Stream::create());
  std::atomic<bool> released_{false};
};

TEST_F(BlockCopierTest, copies_that_wait_for_a_stream_do_not_delay_others) {
  ASSERT_TRUE(ends(copy(kNumBytes)));
  std::vector<BlockCopier::UnderWay> earlier;  // after which there are as many lanes as there may be
  {
    const BusyStream gate;
    const cuda::Event opened = require(cuda::Event::create_untimed());
    require(gate.view().record(opened));
    for (int i = 0; i < 20; ++i) {
      const cuda::Stream stream = require(cuda::Stream::create());
      require(stream.view().wait(opened));
      for (int each = 0; each < 4; ++each) earlier.push_back(copy(kNumBytes, stream));
    }
  }
  for (const BlockCopier::UnderWay& copy : earlier) EXPECT_TRUE(ends(copy));
  const cuda::Stream idle = require(cuda::Stream::create());
  std::vector<BlockCopier::UnderWay> waiting;
  {
    const BusyStream busy;
    for (int i = 0; i < 100; ++i) waiting.push_back(copy(kNumBytes, busy.view()));
    {
      const cuda::Stream other = require(cuda::Stream::create());
      require(cudaMemsetAsync(target_->data(), 0, kNumBytes, other.view().get()));
      EXPECT_TRUE(ends(copy(kNumBytes, other)));
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(ends(copy(kNumBytes)));
      EXPECT_TRUE(ends(copy(kNumBytes, idle)));
      EXPECT_TRUE(ends(copy(kNumBytes / 64, idle)));
    }
    for (const BlockCopier::UnderWay& copy : waiting) EXPECT_EQ(copy.flag().load(), 0u);
  }
  for (const BlockCopier::UnderWay& copy : waiting) EXPECT_TRUE(ends(copy));
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
