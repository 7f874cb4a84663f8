// Latency of the packet collectives: one process, a GPU a rank, kKernels operations in a CUDA graph, best over grids.
//
//   packet_bench [num_ranks]        JSON lines on stdout: one a size and algorithm, the best grid and the default one
//
// Each sample is one graph launch, timed by events on every rank; the operations wait for each other across the GPUs,
// so the time of one is the slowest rank's time over kKernels. Medians of kSamples.
#include <algorithm>
#include <cstdio>
#include <string>

#include "device/device_ranks.hpp"
#include "device/packet_collectives.hpp"

namespace {

using namespace axon;
using axon::testing::DeviceRanks;
using axon::testing::Graph;
using axon::testing::require;

constexpr int kKernels = 50;
constexpr int kSamples = 21;
constexpr size_t kMostBytes = size_t{1} << 20;

struct Algorithm {
  const char* name;
  Status (*function)(const DeviceTeam&, const PacketCollective&, StreamView);
  size_t inputs_of(int num_ranks) const { return function == all_gather_packets ? num_ranks : 1; }
};

constexpr Algorithm kAlgorithms[] = {{"all_reduce_one_shot", all_reduce_one_shot},
                                     {"all_reduce_two_shot", all_reduce_two_shot},
                                     {"all_gather_packets", all_gather_packets}};

constexpr size_t kSizes[] = {64, 1 << 10, 1 << 13, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, kMostBytes};

constexpr LaunchShape kShapes[] = {{0, 0},    {1, 32},   {1, 128},  {1, 256},  {4, 32},   {4, 64},   {4, 256},
                                   {4, 512},  {8, 128},  {8, 256},  {16, 128}, {16, 256}, {16, 512}, {32, 64},
                                   {32, 128}, {32, 256}, {32, 512}, {64, 128}, {64, 256}, {64, 512}};

struct Buffers {
  DeviceMemory input = require(DeviceMemory::allocate(kMostBytes));
  DeviceMemory output = require(DeviceMemory::allocate(kMostBytes));
  Event start = require(Event::create());
  Event end = require(Event::create());
};

// Microseconds an operation.
float measure(const DeviceRanks& ranks, const std::vector<Buffers>& buffers, const Algorithm& algorithm,
              PacketCollective call) {
  std::vector<std::unique_ptr<Graph>> graphs;
  ranks.for_each([&](int rank) {
    call.input = buffers[rank].input.data();
    call.output = buffers[rank].output.data();
    graphs.push_back(std::make_unique<Graph>(ranks.stream(rank), [&] {
      for (int kernel = 0; kernel < kKernels; ++kernel) {
        require(algorithm.function(ranks.team(rank), call, ranks.stream(rank)));
      }
    }));
  });
  std::vector<float> samples;
  for (int sample = -2; sample < kSamples; ++sample) {  // two to warm up
    ranks.for_each([&](int rank) {
      require(ranks.stream(rank).record(buffers[rank].start));
      graphs[rank]->launch(ranks.stream(rank));
      require(ranks.stream(rank).record(buffers[rank].end));
    });
    ranks.synchronize();
    float shortest = 1e9f;  // the rank launched last: the others' time includes waiting for its launch
    ranks.for_each([&](int rank) {
      shortest = std::min(shortest, require(buffers[rank].end.view().microseconds_since(buffers[rank].start)));
    });
    if (sample >= 0) samples.push_back(shortest / kKernels);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

void report(const DeviceRanks& ranks, const std::vector<Buffers>& buffers, const Algorithm& algorithm,
            size_t num_bytes) {
  const size_t input_bytes = num_bytes / algorithm.inputs_of(ranks.size());
  PacketCollective call{.num_elements = input_bytes / 2, .dtype = DataType::kBFloat16, .reduction = Reduction::kSum};
  float by_default = 0, best = 1e9f;
  LaunchShape best_shape{};
  for (const LaunchShape& shape : kShapes) {
    const size_t num_packets = input_bytes / 8;
    const bool is_oversized = static_cast<size_t>(shape.num_blocks) * shape.num_threads > 2 * num_packets + 128;
    const bool is_tiny = shape.num_blocks > 0 && num_packets > 64u * shape.num_blocks * shape.num_threads &&
                         shape.num_blocks < kMaxBlocks;
    if (is_oversized || is_tiny) continue;
    call.shape = shape;
    const float microseconds = measure(ranks, buffers, algorithm, call);
    if (shape.num_blocks == 0) by_default = microseconds;
    std::fprintf(stderr, "%s %zu %dx%d %.2f\n", algorithm.name, num_bytes, shape.num_blocks, shape.num_threads,
                 microseconds);
    if (microseconds >= best) continue;
    best = microseconds;
    best_shape = shape;
  }
  std::printf(
      "{\"work\": \"%s\", \"num_ranks\": %d, \"num_bytes\": %zu, \"dtype\": \"bfloat16\", \"mode\": \"graph\", "
      "\"us\": %.2f, \"best_us\": %.2f, \"best_grid\": \"%dx%d\"}\n",
      algorithm.name, ranks.size(), num_bytes, by_default, best, best_shape.num_blocks, best_shape.num_threads);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::stoi(argv[1]) : num_devices();
  std::vector<int> devices(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) devices[rank] = rank;
  const DeviceRanks ranks(devices, {.block_bytes = size_t{64} << 20});
  std::vector<Buffers> buffers;
  ranks.for_each([&](int) {
    require(load_packet_kernels(num_ranks));
    buffers.push_back(Buffers{});
  });
  for (const Algorithm& algorithm : kAlgorithms) {
    for (const size_t num_bytes : kSizes) {
      report(ranks, buffers, algorithm, num_bytes);
    }
  }
  ranks.for_each([&](int rank) {
    if (ranks.team(rank).mailbox->report.code != FaultCode::kNone)
      throw std::runtime_error("a kernel reported a fault");
  });
  return 0;
}
