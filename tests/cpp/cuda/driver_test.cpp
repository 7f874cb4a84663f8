// Driver functions that the runtime lacks: memory that processes share, flags that streams write and wait for. On a
// machine without a driver, its absence must be an ordinary error.
#include "cuda/driver.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memops.hpp"
#include "cuda/memory.hpp"
#include "cuda/shared_memory.hpp"

namespace axon::cuda {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

template <typename T>
T value(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

TEST(CudaDriver, absence_is_an_error) {
  if (num_devices() != 0) GTEST_SKIP() << "there is one";
  for (int again = 0; again < 2; ++again) {
    Result<const CudaDriver*> driver = load_driver();
    ASSERT_FALSE(driver.ok());
    EXPECT_NE(driver.status().message().find("CUDA driver"), std::string::npos) << driver.status().message();
  }
  EXPECT_FALSE(SharedMemory::allocate(0, kMiB).ok());
  EXPECT_FALSE(uuid_of(0).ok());
  std::atomic<uint32_t> flag{0};
  EXPECT_FALSE(write_flag(StreamView(nullptr), &flag, 1).ok());
  uint32_t device_flag = 0;
  EXPECT_FALSE(set_flag(StreamView(nullptr), &device_flag).ok());
}

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << "needs a GPU, found none";
  }
};

TEST_F(Gpu, memory_is_shared_through_a_descriptor) {
  const SharedMemory mine = value(SharedMemory::allocate(0, 3 * kMiB));
  EXPECT_EQ(mine.num_bytes() % (2 * kMiB), 0u);
  const FileDescriptor descriptor = value(mine.share());
  const SharedMemory theirs = value(SharedMemory::import(0, descriptor, mine.num_bytes()));
  EXPECT_NE(mine.data(), theirs.data());
  check(mine.grant(0));
  const Stream stream = value(Stream::create());
  const std::vector<uint32_t> sent{1, 2, 3, 4};
  std::vector<uint32_t> received(sent.size());
  check(copy_async(mine.data() + kMiB, sent.data(), 16, stream));
  check(copy_async(received.data(), theirs.data() + kMiB, 16, stream));
  check(stream.view().synchronize());
  EXPECT_EQ(received, sent);
}

TEST_F(Gpu, streams_wait_for_the_host_and_tell_it) {
  const PinnedMemory pinned = value(PinnedMemory::allocate(64));
  auto* flags = reinterpret_cast<std::atomic<uint32_t>*>(pinned.data());
  const Stream stream = value(Stream::create());
  check(wait_for_flag(stream, &flags[0], 7));
  check(write_flag(stream, &flags[1], 9));
  EXPECT_EQ(flags[1].load(std::memory_order_acquire), 0u);
  flags[0].store(7, std::memory_order_release);
  check(stream.view().synchronize());
  EXPECT_EQ(flags[1].load(std::memory_order_acquire), 9u);
}

TEST_F(Gpu, streams_hand_flags_on_eagerly_and_in_graphs) {
  constexpr size_t kNumFlags = 3;
  const DeviceMemory memory = value(DeviceMemory::allocate(kNumFlags * sizeof(uint32_t)));
  auto* const first = reinterpret_cast<uint32_t*>(memory.data());
  const std::array<uint32_t*, kNumFlags> flags{first, first + 1, first + 2};
  const Stream giver = value(Stream::create()), taker = value(Stream::create());
  const Event taken = value(Event::create_untimed());
  const auto hand_on = [&](const std::function<void()>& take) {
    take();
    check(taker.view().record(taken));
    for (uint32_t* flag : flags) {
      EXPECT_FALSE(taken.view().has_passed());
      check(set_flag(giver, flag));
      check(giver.view().synchronize());
    }
    check(taker.view().synchronize());
    std::array<uint32_t, kNumFlags> left{1, 1, 1};
    check(copy_async(left.data(), memory.data(), sizeof left, taker));
    check(taker.view().synchronize());
    EXPECT_EQ(left, (std::array<uint32_t, kNumFlags>{}));
  };
  hand_on([&] { check(take_flags(taker, flags)); });
  ASSERT_EQ(cudaStreamBeginCapture(taker.view().get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  check(take_flags(taker, flags));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(taker.view().get(), &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int again = 0; again < 3; ++again) {
    hand_on([&] { ASSERT_EQ(cudaGraphLaunch(executable, taker.view().get()), cudaSuccess); });
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

// Torch captures in global mode, which forbids other threads to allocate; a relaxed thread may.
TEST_F(Gpu, relaxed_calls_do_not_spoil_a_capture) {
  const Stream stream = value(Stream::create());
  EXPECT_FALSE(value(is_capturing(stream)));
  EXPECT_EQ(value(capture_of(stream)), 0u);
  ASSERT_EQ(cudaStreamBeginCapture(stream.view().get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_TRUE(value(is_capturing(stream)));
  EXPECT_NE(value(capture_of(stream)), 0u);
  {
    const RelaxedCapture relaxed;
    value(SharedMemory::allocate(0, kMiB));
    value(PinnedMemory::allocate(64));
    const Stream other = value(Stream::create());
    check(other.view().synchronize());
  }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream.view().get(), &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_FALSE(value(is_capturing(stream)));
}

TEST_F(Gpu, graphs_keep_what_they_are_given) {
  const Stream stream = value(Stream::create());
  auto given = std::make_shared<int>(7);
  const std::weak_ptr<int> kept = given;
  ASSERT_EQ(cudaStreamBeginCapture(stream.view().get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  check(keep_with_graph(stream, std::move(given)));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.view().get(), &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_FALSE(kept.expired());
  cudaGraphExecDestroy(executable);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!kept.expired() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(kept.expired());
}

TEST_F(Gpu, is_named_by_uuid_and_bus) {
  EXPECT_NE(value(uuid_of(0)), DeviceUuid{});
  EXPECT_EQ(value(pci_bus_id_of(0)).find(':'), 4u);
}

}  // namespace
}  // namespace axon::cuda
