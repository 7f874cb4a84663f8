#include "stream/launch_ledger.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <semaphore>
#include <thread>

#include "device/device_ranks.hpp"

namespace axon {
namespace {

using testing::require;

class LaunchLedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << "needs a GPU";
  }

  LaunchLedger ledger_;
};

TEST_F(LaunchLedgerTest, is_idle_while_nobody_has_launched) {
  EXPECT_TRUE(ledger_.is_idle(ledger_.lock()));
}

TEST_F(LaunchLedgerTest, is_busy_until_the_streams_are_empty) {
  const Stream stream = require(Stream::create());
  StreamOrder order(require(Event::create_untimed()));
  require(order.follow(stream));
  std::binary_semaphore goes_on(0);
  const auto wait = [](void* semaphore) { static_cast<std::binary_semaphore*>(semaphore)->acquire(); };
  require(cudaLaunchHostFunc(stream.view().get(), wait, &goes_on));
  ledger_.note(order, ledger_.lock());
  EXPECT_FALSE(ledger_.is_idle(ledger_.lock()));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  goes_on.release();
  require(stream.view().synchronize());
  EXPECT_TRUE(ledger_.is_idle(ledger_.lock()));
}

TEST_F(LaunchLedgerTest, is_busy_while_a_stream_is_captured_and_as_long_as_a_graph_lives) {
  const Stream stream = require(Stream::create());
  StreamOrder order(require(Event::create_untimed()));
  {
    const testing::Graph graph(stream, [&] {
      require(order.follow(stream));
      ledger_.note(order, ledger_.lock());
      EXPECT_FALSE(ledger_.is_idle(ledger_.lock()));
    });
    EXPECT_FALSE(ledger_.is_idle(ledger_.lock()));
    ledger_.forget(order, ledger_.lock());
    EXPECT_FALSE(ledger_.is_idle(ledger_.lock()));
  }
  // CUDA lets go of what graphs keep on a thread of its own.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!ledger_.is_idle(ledger_.lock()) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(ledger_.is_idle(ledger_.lock()));
}

}  // namespace
}  // namespace axon
