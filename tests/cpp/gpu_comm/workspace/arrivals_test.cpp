// Two ranks' flags in one process, which maps their pages twice as two processes would.
#include "gpu_comm/workspace/arrivals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "cuda/memops.hpp"
#include "cuda/memory.hpp"
#include "kernels/device_ranks.hpp"

namespace axon::gpu_comm {
namespace {

using testing::require;

class ArrivalsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
    stream_ = require(cuda::Stream::create());
    passed_ = require(cuda::Event::create_untimed());
  }

  static std::unique_ptr<Arrivals> create(int rank) {
    return require(Arrivals::create({.device = 0, .rank = rank, .num_ranks = 2}));
  }

  void await(const Arrivals& arrivals, int tile) { require(arrivals.await(tile, *stream_)); }

  bool has_passed() {
    require(stream_->view().record(*passed_));
    return passed_->view().has_passed();
  }

  std::optional<cuda::Stream> stream_;
  std::optional<cuda::Event> passed_;
};

// The peer's flags are registered while a stream waits: that must not wait for the device.
TEST_F(ArrivalsTest, a_stream_waits_until_the_peer_has_told_of_the_tile) {
  const std::unique_ptr<Arrivals> mine = create(0);
  await(*mine, 2);
  const std::unique_ptr<Arrivals> theirs = create(1);
  require(theirs->map(0, FileDescriptor(dup(mine->descriptor()))));
  const cuda::Stream side = require(cuda::Stream::create());
  require(theirs->tell(0, 1, side));
  require(side.view().synchronize());
  EXPECT_FALSE(has_passed());
  require(theirs->tell(0, 2, side));
  require(stream_->view().synchronize());
  await(*mine, 1);
  require(stream_->view().synchronize());
  await(*mine, 2);
  EXPECT_FALSE(has_passed()) << "the flag has been taken";
  require(theirs->tell(0, 2, side));
  require(stream_->view().synchronize());
}

TEST_F(ArrivalsTest, giving_up_ends_the_waits_that_are_queued_and_those_that_come) {
  const std::unique_ptr<Arrivals> arrivals = create(1);
  for (int again = 0; again < 3; ++again) {
    for (int tile = 0; tile < kMaxTiles; ++tile) await(*arrivals, tile);
  }
  EXPECT_FALSE(has_passed());
  arrivals->give_up();
  require(stream_->view().synchronize());
  await(*arrivals, 0);
  require(stream_->view().synchronize());
}

// More launches than the queue holds: CUDA blocks this thread until another thread ends the waits.
TEST_F(ArrivalsTest, giving_up_frees_a_thread_whose_launches_fill_the_queue) {
  const std::unique_ptr<Arrivals> arrivals = create(0);
  const cuda::DeviceMemory flag = require(cuda::DeviceMemory::allocate(sizeof(uint32_t)));
  await(*arrivals, 0);
  const std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    arrivals->give_up();
  });
  for (int launch = 0; launch < 20'000; ++launch) {
    require(write_flag(*stream_, reinterpret_cast<std::atomic<uint32_t>*>(flag.data()), 1));
  }
  require(stream_->view().synchronize());
}

}  // namespace
}  // namespace axon::gpu_comm
