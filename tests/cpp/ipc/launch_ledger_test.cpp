#include "ipc/launch_ledger.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <semaphore>
#include <thread>

#include "kernels/device_ranks.hpp"

namespace axon::ipc {
namespace {

using testing::require;

class LaunchLedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
  }

  bool is_idle() {
    bool has_run = false;
    const bool told = ledger_.run_if_idle([&] { has_run = true; });
    EXPECT_EQ(has_run, told);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    return told;
  }

  LaunchLedger ledger_;
};

TEST_F(LaunchLedgerTest, is_idle_before_the_first_launch) {
  EXPECT_TRUE(is_idle());
}

TEST_F(LaunchLedgerTest, nothing_runs_during_a_launch) {
  const LaunchLedger::Launching first = ledger_.launching();
  const LaunchLedger::Launching second = ledger_.launching();
  EXPECT_FALSE(is_idle());
}

TEST_F(LaunchLedgerTest, is_busy_until_the_kernels_are_done_also_of_groups_that_are_gone) {
  const cuda::Stream stream = require(cuda::Stream::create());
  std::binary_semaphore goes_on(0);
  const auto wait = [](void* semaphore) { static_cast<std::binary_semaphore*>(semaphore)->acquire(); };
  {
    StreamOrder order(require(cuda::Event::create_untimed()));
    require(order.follow(stream));
    require(cudaLaunchHostFunc(stream.view().get(), wait, &goes_on));
    require(ledger_.note(order, stream));
    EXPECT_FALSE(is_idle());
    ledger_.forget(order);
  }
  EXPECT_FALSE(is_idle());
  goes_on.release();
  require(stream.view().synchronize());
  EXPECT_TRUE(is_idle());
}

// A query would invalidate the capture.
TEST_F(LaunchLedgerTest, may_be_asked_while_a_stream_is_captured) {
  const cuda::Stream stream = require(cuda::Stream::create());
  StreamOrder order(require(cuda::Event::create_untimed()));
  require(ledger_.note(order, stream));
  require(stream.view().synchronize());
  const testing::Graph graph(stream, [&] { EXPECT_TRUE(is_idle()); });
}

TEST_F(LaunchLedgerTest, is_busy_as_long_as_a_graph_lives) {
  const cuda::Stream stream = require(cuda::Stream::create());
  StreamOrder order(require(cuda::Event::create_untimed()));
  {
    const testing::Graph graph(stream, [&] {
      require(order.follow(stream));
      require(ledger_.note(order, stream));
    });
    EXPECT_FALSE(is_idle());
    ledger_.forget(order);
    EXPECT_FALSE(is_idle());
  }
  // CUDA releases what graphs keep on a thread of its own.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!is_idle() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(is_idle());
}

}  // namespace
}  // namespace axon::ipc
