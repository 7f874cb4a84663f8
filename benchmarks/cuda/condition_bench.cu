// How long it takes from a kernel that sets a condition, over the transfer of 8 bytes that it starts, to the kernel
// that waits for its end. Both ends of the transfer are in this process, so the rest is what conditions cost. Prints
// one JSON record. Each figure is the median of 9 runs, in microseconds.
//
//   condition_bench COMMIT DATE
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <vector>

#include "axon/axon.hpp"
#include "axon/condition.cuh"

namespace {

using namespace std::chrono_literals;

constexpr int kRuns = 9;
constexpr uint32_t kRounds = 2000;
constexpr std::array<int32_t, 1> kBlock{0};

void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

void require(const axon::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

__global__ void one_kernel(axon::DeviceCondition begin, axon::DeviceCondition end, volatile uint64_t* source,
                           const volatile uint64_t* target, uint32_t first, uint32_t* num_wrong) {
  for (uint32_t round = first + 1; round <= first + kRounds; ++round) {
    *source = round;
    axon::set(begin);
    if (!axon::wait(end, round) || *target != round) ++*num_wrong;
  }
}

__global__ void nothing() {}

double median_of(const std::function<void()>& run) {
  std::vector<double> times;
  run();
  for (int i = 0; i < kRuns; ++i) {
    const auto began = std::chrono::steady_clock::now();
    run();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count() /
                    kRounds);
  }
  std::ranges::nth_element(times, times.begin() + kRuns / 2);
  return times[kRuns / 2];
}

double time_of_graph(cudaStream_t stream, const std::function<void()>& record) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launchable = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (uint32_t i = 0; i < kRounds; ++i) record();
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&launchable, graph, 0));
  const double time = median_of([&] {
    require(cudaGraphLaunch(launchable, stream));
    require(cudaStreamSynchronize(stream));
  });
  require(cudaGraphExecDestroy(launchable));
  require(cudaGraphDestroy(graph));
  return time;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t* words = nullptr;  // source and target, in lines of their own
  uint32_t* num_wrong = nullptr;
  cudaStream_t stream = nullptr;
  require(cudaMallocHost(&words, 1024));
  words[0] = words[64] = 0;
  require(cudaMalloc(&num_wrong, sizeof *num_wrong));
  require(cudaMemset(num_wrong, 0, sizeof *num_wrong));
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  axon::Runtime server = axon::Runtime::open({.name = "server"}).value();
  axon::Runtime client = axon::Runtime::open({.name = "client"}).value();
  const axon::Peer peer = client.connect(server.address().value(), 10s).value();
  const std::span target(reinterpret_cast<std::byte*>(words + 64), 8);
  const axon::Region region = server.expose(target, {.access = axon::Access::kReadWrite, .name = "word"}).value();
  const axon::Remote remote = peer.open(region.handle({}).value(), 10s).value();
  const std::span source(reinterpret_cast<const std::byte*>(words), 8);
  const axon::Blocks block{.num_bytes = 8, .count = 1};
  axon::Condition begin = client.condition().value(), end = client.condition().value();
  const axon::Plan plan = peer.plan_write(source, block, remote, block).value();
  const axon::TriggeredTransfer sending = plan.post_when(begin, kBlock, kBlock, {.then = end}).value();

  const double by_thread = median_of([&] {
    for (uint32_t i = 0; i < kRounds; ++i) {
      begin.set();
      if (!end.wait(10s)) throw std::runtime_error(end.status().message());
    }
  });
  const axon::ConditionOnDevice begin_there = axon::ConditionOnDevice::make(begin, 10s).value();
  const axon::ConditionOnDevice end_there = axon::ConditionOnDevice::make(end, 10s).value();
  const double in_a_graph = time_of_graph(stream, [&] {
    require(begin_there.set_unexpectedly(stream));
    require(end_there.wait(stream));
  });
  uint32_t num_rounds = 0;  // no stream waits for these
  const double in_one_kernel = median_of([&] {
    require(begin_there.expect(stream));
    one_kernel<<<1, 1, 0, stream>>>(begin_there.device(), end_there.device(), words, words + 64, num_rounds, num_wrong);
    num_rounds += kRounds;
    require(cudaStreamSynchronize(stream));
  });
  const double empty_graph = time_of_graph(stream, [&] {
    nothing<<<1, 1, 0, stream>>>();
    nothing<<<1, 1, 0, stream>>>();
  });
  require(end.status());
  uint32_t wrong = 0;
  require(cudaMemcpy(&wrong, num_wrong, sizeof wrong, cudaMemcpyDeviceToHost));
  cudaDeviceProp device{};
  require(cudaGetDeviceProperties(&device, 0));
  std::printf(
      R"({"machine": {"gpu": "%s", "commit": "%s", "date": "%s"}, "wrong": %u, "condition_us": {"by a thread": %.2f, )"
      R"("by a kernel": %.2f, "by nodes of a graph": %.2f, "two empty nodes": %.2f}})"
      "\n",
      device.name, argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "", wrong, by_thread, in_one_kernel, in_a_graph,
      empty_graph);
  return wrong == 0 ? 0 : 1;
}
