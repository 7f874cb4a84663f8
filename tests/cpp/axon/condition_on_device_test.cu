// Conditions that streams, nodes of graphs and kernels set, and for which they wait.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "axon/condition.cuh"
#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

constexpr uint32_t kElements = 1000;
constexpr size_t kBytes = kElements * sizeof(uint32_t);
constexpr std::array<int32_t, 1> kBlock{0};

void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// Counts in device memory: how often the kernels ran, and how often they found a wrong element.
struct Progress {
  uint32_t round;
  uint32_t num_wrong;
};

__global__ void fill(uint32_t* elements, Progress* progress) {
  const uint32_t round = progress->round + 1;
  for (uint32_t i = threadIdx.x; i < kElements; i += blockDim.x) elements[i] = round * kElements + i;
  __syncthreads();
  if (threadIdx.x == 0) progress->round = round;
}

__device__ void check_elements(const uint32_t* elements, Progress* progress) {
  for (uint32_t i = threadIdx.x; i < kElements; i += blockDim.x) {
    const auto element = static_cast<const volatile uint32_t*>(elements)[i];
    if (element != progress->round * kElements + i) atomicAdd(&progress->num_wrong, 1u);
  }
}

__global__ void check(const uint32_t* elements, Progress* progress) {
  check_elements(elements, progress);
}

// One kernel that fills the memory, sends it, waits until it is there and compares.
__global__ void exchange(uint32_t* local, const uint32_t* remote, Progress* progress, DeviceCondition filled,
                         DeviceCondition sent) {
  const uint32_t round = progress->round + 1;
  for (uint32_t i = threadIdx.x; i < kElements; i += blockDim.x) local[i] = round * kElements + i;
  __syncthreads();
  if (threadIdx.x == 0) progress->round = round;
  set(filled);
  if (!wait(sent)) return;
  check_elements(remote, progress);
}

__global__ void set_often(DeviceCondition condition, int times) {
  for (int i = 0; i < times; ++i) set(condition);
}

__global__ void note_wait(DeviceCondition condition, uint32_t* was_set) {
  const bool is_set = wait(condition);
  if (threadIdx.x == 0) *was_set = is_set ? 1 : 2;
}

class ConditionsOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) GTEST_SKIP() << "needs a GPU";
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    require(cudaMallocHost(&memory_, 3 * kBytes));
    memset(memory_, 0, 3 * kBytes);
    require(cudaMalloc(&progress_, sizeof *progress_));
    require(cudaMemset(progress_, 0, sizeof *progress_));
    pair_.emplace();
    region_.emplace(pair_->server
                        .expose(std::as_writable_bytes(std::span(remote(), 2 * kElements)),
                                {.access = Access::kReadWrite, .name = "memory"})
                        .value());
    opened_.emplace(pair_->to_server.open(region_->handle({}).value(), 30s).value());
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    pair_.reset();
    require(cudaStreamDestroy(stream_));
    require(cudaFree(progress_));
    require(cudaFreeHost(memory_));
  }

  uint32_t* local() const { return memory_; }
  uint32_t* remote() const { return memory_ + kElements; }
  std::span<std::byte> local_bytes() const { return std::as_writable_bytes(std::span(local(), kElements)); }
  Condition condition() { return pair_->client.condition().value(); }
  ConditionOnDevice on_device(const Condition& condition, std::chrono::milliseconds timeout = 60s) {
    return ConditionOnDevice::make(condition, timeout).value();
  }
  Plan write_plan(uint64_t offset = 0) {
    const Blocks here{.num_bytes = kBytes, .count = 1};
    return pair_->to_server
        .plan_write(local_bytes(), here, *opened_, {.num_bytes = kBytes, .count = 1, .offset = offset})
        .value();
  }
  Plan read_plan() {
    const Blocks block{.num_bytes = kBytes, .count = 1};
    return pair_->to_server.plan_read(local_bytes(), block, *opened_, block).value();
  }
  Progress progress() {
    Progress found{};
    require(cudaStreamSynchronize(stream_));
    require(cudaMemcpy(&found, progress_, sizeof found, cudaMemcpyDeviceToHost));
    return found;
  }

  cudaStream_t stream_ = nullptr;
  uint32_t* memory_ = nullptr;  // one buffer of this process, and two of the peer's
  Progress* progress_ = nullptr;
  std::optional<ConnectedPair> pair_;
  std::optional<Region> region_;
  std::optional<Remote> opened_;
};

TEST_F(ConditionsOnDevice, order_streams_and_transfers) {
  Condition filled = condition(), sent = condition();
  const ConditionOnDevice filled_there = on_device(filled), sent_there = on_device(sent);
  const TriggeredTransfer sending = write_plan().post_when(filled, kBlock, kBlock, {.then = sent}).value();
  for (int i = 0; i < 300; ++i) {
    fill<<<1, 256, 0, stream_>>>(local(), progress_);
    require(filled_there.set(stream_));
    require(sent_there.wait(stream_));
    check<<<1, 256, 0, stream_>>>(remote(), progress_);
  }
  EXPECT_EQ(progress().num_wrong, 0u);
  EXPECT_EQ(progress().round, 300u);
  EXPECT_EQ(sending.num_finished(), 300u);
  EXPECT_TRUE(sent.status().ok());
}

TEST_F(ConditionsOnDevice, are_set_by_kernels_in_replayed_graphs_after_a_long_pause_too) {
  Condition filled = condition(), sent = condition();
  const ConditionOnDevice filled_there = on_device(filled), sent_there = on_device(sent);
  const TriggeredTransfer sending = write_plan().post_when(filled, kBlock, kBlock, {.then = sent}).value();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launchable = nullptr;
  require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  require(filled_there.expect(stream_));
  exchange<<<1, 256, 0, stream_>>>(local(), remote(), progress_, filled_there.device(), sent_there.device());
  require(sent_there.wait(stream_));
  require(cudaStreamEndCapture(stream_, &graph));
  require(cudaGraphInstantiate(&launchable, graph, 0));
  for (int i = 0; i < 1000; ++i) require(cudaGraphLaunch(launchable, stream_));
  EXPECT_EQ(progress().num_wrong, 0u);
  std::this_thread::sleep_for(11s);  // nothing is polled any more
  for (int i = 0; i < 10; ++i) require(cudaGraphLaunch(launchable, stream_));
  EXPECT_EQ(progress().num_wrong, 0u);
  EXPECT_EQ(progress().round, 1010u);
  EXPECT_EQ(sending.num_finished(), 1010u);
  require(cudaGraphExecDestroy(launchable));
  require(cudaGraphDestroy(graph));
}

// The peer's first buffer is read, and written to both of its buffers: one receive, and two sends that depend on it.
TEST_F(ConditionsOnDevice, are_nodes_of_graphs_with_dependencies) {
  Condition begun = condition(), received = condition(), left = condition(), right = condition();
  const ConditionOnDevice begun_there = on_device(begun), left_there = on_device(left), right_there = on_device(right);
  const TriggeredTransfer receiving = read_plan().post_when(begun, kBlock, kBlock, {.then = received}).value();
  const TriggeredTransfer to_left = write_plan().post_when(received, kBlock, kBlock, {.then = left}).value();
  const TriggeredTransfer to_right = write_plan(kBytes).post_when(received, kBlock, kBlock, {.then = right}).value();
  cudaGraph_t graph = nullptr;
  require(cudaGraphCreate(&graph, 0));
  uint32_t* source = remote();
  void* arguments[] = {&source, &progress_};
  cudaKernelNodeParams filling{};
  filling.func = reinterpret_cast<void*>(&fill);
  filling.gridDim = dim3(1);
  filling.blockDim = dim3(256);
  filling.kernelParams = arguments;
  cudaGraphNode_t filled = nullptr;
  require(cudaGraphAddKernelNode(&filled, graph, nullptr, 0, &filling));
  const std::array after_fill{filled};
  const std::array after_set{begun_there.add_set(graph, after_fill).value()};
  const std::array after_waits{left_there.add_wait(graph, after_set).value(),
                               right_there.add_wait(graph, after_set).value()};
  for (uint32_t* target : {remote(), remote() + kElements}) {
    void* checked[] = {&target, &progress_};
    filling.func = reinterpret_cast<void*>(&check);
    filling.kernelParams = checked;
    cudaGraphNode_t node = nullptr;
    require(cudaGraphAddKernelNode(&node, graph, after_waits.data(), after_waits.size(), &filling));
  }
  cudaGraphExec_t launchable = nullptr;
  require(cudaGraphInstantiate(&launchable, graph, 0));
  for (int i = 0; i < 200; ++i) require(cudaGraphLaunch(launchable, stream_));
  EXPECT_EQ(progress().num_wrong, 0u);
  EXPECT_EQ(progress().round, 200u);
  EXPECT_EQ(to_left.num_finished(), 200u);
  EXPECT_EQ(to_right.num_finished(), 200u);
  require(cudaGraphExecDestroy(launchable));
  require(cudaGraphDestroy(graph));
}

TEST_F(ConditionsOnDevice, count_what_many_blocks_set) {
  Condition set_by_all = condition();
  const ConditionOnDevice there = on_device(set_by_all);
  Condition::expect(set_by_all.engine());
  set_often<<<64, 32, 0, stream_>>>(there.device(), 100);
  for (int i = 0; i < 6400; ++i) ASSERT_TRUE(set_by_all.wait(30s));
  EXPECT_FALSE(set_by_all.wait(20ms));
  require(cudaStreamSynchronize(stream_));
  for (int i = 0; i < 6400; ++i) require(there.wait(stream_));
  require(cudaStreamSynchronize(stream_));
  EXPECT_TRUE(set_by_all.status().ok());
}

TEST_F(ConditionsOnDevice, let_streams_go_on_once_they_have_ended) {
  Condition filled = condition(), sent = condition();
  const ConditionOnDevice filled_there = on_device(filled), sent_there = on_device(sent);
  const TriggeredTransfer sending = write_plan().post_when(filled, kBlock, kBlock, {.then = sent}).value();
  EXPECT_TRUE(region_->close(30s));
  auto* const was_set = reinterpret_cast<uint32_t*>(progress_);
  require(filled_there.set(stream_));
  require(sent_there.wait(stream_));
  note_wait<<<4, 64, 0, stream_>>>(sent_there.device(), was_set);
  EXPECT_EQ(progress().round, 2u);
  EXPECT_EQ(sent.status().code(), ErrorCode::kAccessDenied);
}

TEST_F(ConditionsOnDevice, let_streams_go_on_after_the_timeout) {
  Condition never = condition();
  const ConditionOnDevice there = on_device(never, 50ms);
  require(there.wait(stream_));
  require(cudaStreamSynchronize(stream_));
  EXPECT_EQ(never.status().code(), ErrorCode::kTimeout);
  require(there.wait(stream_));  // not again for as long
  require(cudaStreamSynchronize(stream_));
}

TEST_F(ConditionsOnDevice, are_used_by_a_device_once_at_a_time) {
  Condition one = condition();
  {
    const ConditionOnDevice there = on_device(one);
    const Status second = ConditionOnDevice::make(one, 1s).status().clone();
    EXPECT_EQ(second.code(), ErrorCode::kInvalidArgument) << second.message();
    require(there.set(stream_));
    ASSERT_TRUE(one.wait(30s));
    require(cudaStreamSynchronize(stream_));
  }
  const ConditionOnDevice again = on_device(one);
  require(again.set(stream_));
  ASSERT_TRUE(one.wait(30s));
  require(again.wait(stream_));
  require(cudaStreamSynchronize(stream_));
  EXPECT_EQ(one.num_set(), 2u);
  EXPECT_TRUE(one.status().ok());
}

}  // namespace
}  // namespace axon::library
