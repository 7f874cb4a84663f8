// Measures the device's collectives: one process with one GPU per rank; every result is checked.
//
//   device_bench [RANKS] [--mode graph|eager] [--works a,b,…] [--from BYTES] [--to BYTES] [--slice BYTES]
//                        [--misalignment BYTES] [--shapes LxW,LxW,…]
//
// Prints one JSON line per size and work on stdout, with the default shape and the best of the given shapes. A shape is
// LL128 channels per link x warps per block; blocks x threads for LL kernels; blocks x 0 for zero-copy kernels.
// Zero-copy kernels are timed together with the LL128 kernels that follow them. num_zero_copy says how often the LL128
// kernels had nothing to do (send_recv_ring_zero_copy: how many messages did not use LL128). Sizes of all_gather,
// reduce_scatter and all_to_all are totals. A sample is a series of operations that wait for each other across the
// GPUs, in one graph launch or launched one by one, timed by events. Only the rank that was launched last counts,
// because the other ranks' times include waiting for its launch. Figures are medians.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>

#include "kernels/device_ranks.hpp"
#include "kernels/ll/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/zero_copy/launch.hpp"
#include "kernels/zero_copy/point_to_point.hpp"

namespace {

using namespace axon;
using axon::testing::DeviceRanks;
using axon::testing::Graph;
using axon::testing::require;

struct Shape {
  int first = 0, second = 0;
};

struct Options {
  int num_ranks = cuda::num_devices();
  bool in_graph = true;
  std::string works;
  size_t from = 1 << 10;
  size_t to = size_t{256} << 20;
  size_t slice_bytes = size_t{16} << 20;
  size_t misalignment = 0;
  std::vector<Shape> shapes;
};

// One operation of one rank.
struct Call {
  const cuda::DeviceTeam& team;
  cuda::StreamView stream;
  std::byte* input;
  std::byte* output;
  size_t num_bytes;
  Shape shape;
  cuda::IpcLocation input_location, output_location;

  int rank() const { return team.rank; }
  int num_ranks() const { return team.num_ranks; }
  size_t shard() const { return num_bytes / num_ranks(); }
  kernels::Ll128Shape ll128_shape() const { return {.num_channels = shape.first, .warps_per_block = shape.second}; }
};

kernels::ll::LlCollective packets(const Call& call, size_t num_bytes) {
  return {.input = call.input,
          .output = call.output,
          .num_elements = num_bytes / 2,
          .dtype = DataType::kBFloat16,
          .reduction = Reduction::kSum,
          .shape = {call.shape.first, call.shape.second}};
}

Status one_shot(const Call& call) {
  return kernels::ll::all_reduce_one_shot(call.team, packets(call, call.num_bytes), call.stream);
}
Status two_shot(const Call& call) {
  return kernels::ll::all_reduce_two_shot(call.team, packets(call, call.num_bytes), call.stream);
}
Status gather_by_ll(const Call& call) {
  return kernels::ll::all_gather(call.team, packets(call, call.shard()), call.stream);
}

kernels::ReduceCall reduction(const Call& call) {
  return {.input = call.input,
          .output = call.output,
          .num_elements = call.num_bytes / 2,
          .dtype = DataType::kBFloat16,
          .reduction = Reduction::kSum};
}

Status reduce_by_ll128(const Call& call) {
  kernels::ReduceCall what = reduction(call);
  what.shape = call.ll128_shape();
  return kernels::ll128::all_reduce(call.team, what, call.stream);
}

Status reduce_by_zero_copy(const Call& call) {
  kernels::ReduceCall what = reduction(call);
  const kernels::zero_copy::ReduceLocations locations{
      .input = call.input_location, .output = call.output_location, .num_blocks = call.shape.first};
  AXON_TRY(kernels::zero_copy::all_reduce(call.team, what, locations, call.stream));
  what.when = kernels::When::kIfFallback;
  return kernels::ll128::all_reduce(call.team, what, call.stream);
}

kernels::ReduceScatterCall sums_of_shards(const Call& call) {
  kernels::ReduceScatterCall what{.output = call.output, .dtype = DataType::kBFloat16, .reduction = Reduction::kSum};
  for (int rank = 0; rank < call.num_ranks(); ++rank) {
    what.inputs[rank] = {call.input + rank * call.shard(), call.shard()};
  }
  return what;
}

Status scatter_sums(const Call& call) {
  kernels::ReduceScatterCall what = sums_of_shards(call);
  what.shape = call.ll128_shape();
  return kernels::ll128::reduce_scatter(call.team, what, call.stream);
}

Status scatter_sums_by_zero_copy(const Call& call) {
  kernels::ReduceScatterCall what = sums_of_shards(call);
  kernels::zero_copy::ReduceScatterLocations locations{.num_blocks = call.shape.first};
  for (int rank = 0; rank < call.num_ranks(); ++rank) {
    locations.inputs[rank] = kernels::zero_copy::advanced_by(call.input_location, rank * call.shard());
  }
  AXON_TRY(kernels::zero_copy::reduce_scatter(call.team, what, locations, call.stream));
  what.when = kernels::When::kIfFallback;
  return kernels::ll128::reduce_scatter(call.team, what, call.stream);
}

kernels::ExchangeCall all_gather(const Call& call) {
  kernels::ExchangeCall what{.operation = cuda::DeviceOperation::kAllGather};
  for (int rank = 0; rank < call.num_ranks(); ++rank) {
    what.sends[rank] = {call.input, call.shard()};
    what.receives[rank] = {call.output + rank * call.shard(), call.shard()};
  }
  return what;
}

kernels::ExchangeCall all_to_all(const Call& call) {
  kernels::ExchangeCall what{.operation = cuda::DeviceOperation::kAllToAll};
  for (int rank = 0; rank < call.num_ranks(); ++rank) {
    what.sends[rank] = {call.input + rank * call.shard(), call.shard()};
    what.receives[rank] = {call.output + rank * call.shard(), call.shard()};
  }
  return what;
}

template <kernels::ExchangeCall (*kOperation)(const Call&)>
Status by_ll128(const Call& call) {
  kernels::ExchangeCall what = kOperation(call);
  what.shape = call.ll128_shape();
  return kernels::ll128::exchange(call.team, what, call.stream);
}

template <kernels::ExchangeCall (*kOperation)(const Call&)>
Status by_zero_copy(const Call& call) {
  kernels::ExchangeCall what = kOperation(call);
  kernels::zero_copy::ExchangeLocations locations{.num_blocks = call.shape.first};
  for (int rank = 0; rank < call.num_ranks(); ++rank) {
    locations.receives[rank] = kernels::zero_copy::advanced_by(call.output_location, rank * call.shard());
  }
  AXON_TRY(kernels::zero_copy::exchange(call.team, what, locations, call.stream));
  what.when = kernels::When::kIfFallback;
  return kernels::ll128::exchange(call.team, what, call.stream);
}

Status broadcast(const Call& call) {
  std::byte* data = call.rank() == 0 ? call.input : call.output;
  return kernels::ll128::broadcast(
      call.team, {.data = data, .num_bytes = call.num_bytes, .root = 0, .shape = call.ll128_shape()}, call.stream);
}

Status broadcast_in_one_flight(const Call& call) {
  kernels::ExchangeCall what{.operation = cuda::DeviceOperation::kBroadcast, .root = 0, .shape = call.ll128_shape()};
  if (call.rank() == 0) {
    for (int rank = 1; rank < call.num_ranks(); ++rank) what.sends[rank] = {call.input, call.num_bytes};
  } else {
    what.receives[0] = {call.output, call.num_bytes};
  }
  return kernels::ll128::exchange(call.team, what, call.stream);
}

// A shape is blocks x spans that a block writes before it signals.
Status hand_on(const Call& call) {
  kernels::BroadcastCall what{
      .data = call.rank() == 0 ? call.input : call.output, .num_bytes = call.num_bytes, .root = 0};
  const kernels::zero_copy::BroadcastLocations locations{
      .data = call.output_location, .num_blocks = call.shape.first, .num_spans = call.shape.second};
  AXON_TRY(kernels::zero_copy::broadcast(call.team, what, locations, call.stream));
  what.when = kernels::When::kIfFallback;
  return kernels::ll128::broadcast(call.team, what, call.stream);
}

int next_of(const Call& call) {
  return (call.rank() + 1) % call.num_ranks();
}
int previous_of(const Call& call) {
  return (call.rank() + call.num_ranks() - 1) % call.num_ranks();
}

kernels::ExchangeCall around(const Call& call) {
  const int next = next_of(call), previous = previous_of(call);
  kernels::ExchangeCall what{.traffic = cuda::TrafficClass::kPointToPoint,
                             .operation = cuda::DeviceOperation::kPointToPoint,
                             .sends_to = 1u << next,
                             .receives_from = 1u << previous,
                             .shape = call.ll128_shape()};
  what.sends[next] = {call.input, call.num_bytes};
  what.receives[previous] = {call.output, call.num_bytes};
  return what;
}

Status send_around_by_zero_copy(const Call& call) {
  kernels::zero_copy::MessageLocations zero_copy{.sends_to = 1u << next_of(call),
                                                 .receives_from = 1u << previous_of(call)};
  zero_copy.receives[previous_of(call)] = call.output_location;
  return kernels::zero_copy::exchange_messages(call.team, around(call), zero_copy, call.stream);
}

// The expected content of element `index` of every rank's output; inputs are (index % 7) + rank.
enum class Result16 { kSum, kSumOfShard, kGathered, kShuffled, kFromRoot, kFromPrevious };

struct Work {
  const char* name;
  Status (*enqueue)(const Call&);
  Result16 result;
  double bus_factor(int n) const {
    if (result == Result16::kSum) return 2.0 * (n - 1) / n;
    return result == Result16::kFromRoot || result == Result16::kFromPrevious ? 1 : 1.0 * (n - 1) / n;
  }
  size_t most_bytes(const cuda::DeviceTeam& team) const {
    const size_t packets = team.layout.region_packets - team.num_ranks;
    if (enqueue == one_shot) return packets / team.num_ranks * 8;
    if (enqueue == two_shot) return packets / 2 * 8 - 8 * team.num_ranks;
    if (enqueue == gather_by_ll) return packets * 8;
    return SIZE_MAX;
  }
};

constexpr Work kWorks[] = {{"ll_all_reduce_one_shot", one_shot, Result16::kSum},
                           {"ll_all_reduce_two_shot", two_shot, Result16::kSum},
                           {"ll128_all_reduce", reduce_by_ll128, Result16::kSum},
                           {"zero_copy_all_reduce", reduce_by_zero_copy, Result16::kSum},
                           {"ll_all_gather", gather_by_ll, Result16::kGathered},
                           {"ll128_all_gather", by_ll128<all_gather>, Result16::kGathered},
                           {"zero_copy_all_gather", by_zero_copy<all_gather>, Result16::kGathered},
                           {"ll128_reduce_scatter", scatter_sums, Result16::kSumOfShard},
                           {"zero_copy_reduce_scatter", scatter_sums_by_zero_copy, Result16::kSumOfShard},
                           {"ll128_all_to_all", by_ll128<all_to_all>, Result16::kShuffled},
                           {"zero_copy_all_to_all", by_zero_copy<all_to_all>, Result16::kShuffled},
                           {"ll128_broadcast", broadcast, Result16::kFromRoot},
                           {"broadcast_one_flight", broadcast_in_one_flight, Result16::kFromRoot},
                           {"zero_copy_broadcast", hand_on, Result16::kFromRoot},
                           {"send_recv_ring", by_ll128<around>, Result16::kFromPrevious},
                           {"send_recv_ring_zero_copy", send_around_by_zero_copy, Result16::kFromPrevious}};

uint16_t bfloat16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);  // exact for small integers
}

float input_element(size_t index, int rank) {
  return static_cast<float>(index % 7) + static_cast<float>(rank);
}

float expected(Result16 result, size_t index, size_t shard, int rank, int num_ranks) {
  const auto sum = [num_ranks](size_t at) {
    return static_cast<float>(num_ranks) * input_element(at, 0) + static_cast<float>(num_ranks * (num_ranks - 1) / 2);
  };
  switch (result) {
    case Result16::kSum:
      return sum(index);
    case Result16::kSumOfShard:
      return sum(rank * shard + index);
    case Result16::kGathered:
      return input_element(index % shard, static_cast<int>(index / shard));
    case Result16::kShuffled:
      return input_element(rank * shard + index % shard, static_cast<int>(index / shard));
    case Result16::kFromPrevious:
      return input_element(index, (rank + num_ranks - 1) % num_ranks);
    default:
      return input_element(index, 0);
  }
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), ranks_(devices(options), {.slice_bytes = options.slice_bytes}) {
    std::vector<uint16_t> elements(options.to / 2);
    ranks_.for_each([&](int rank) {
      require(kernels::load_kernels(ranks_.size()));
      const size_t num_bytes = options.to + options.misalignment;
      buffers_.push_back({require(cuda::DeviceMemory::allocate(num_bytes)),
                          require(cuda::DeviceMemory::allocate(num_bytes)),
                          require(cuda::Event::create()),
                          require(cuda::Event::create()),
                          {},
                          {}});
      buffers_[rank].input_location = ranks_.publish(rank, input(rank));
      buffers_[rank].output_location = ranks_.publish(rank, output(rank));
      for (size_t at = 0; at < elements.size(); ++at) elements[at] = bfloat16_of(input_element(at, rank));
      require(cudaMemcpy(input(rank), elements.data(), options.to, cudaMemcpyHostToDevice));
    });
    ranks_.for_each([](int) { require(cudaDeviceSynchronize()); });
  }

  void report(const Work& work, size_t num_bytes) {
    const uint32_t first_zero_copy = num_zero_copy();
    const float by_default = measure(work, num_bytes, {});
    const size_t num_wrong = count_wrong(work, num_bytes);
    float best = by_default;
    Shape best_shape{};
    for (const Shape shape : options_.shapes) {
      const float microseconds = measure(work, num_bytes, shape);
      if (microseconds < 0) continue;
      std::fprintf(stderr, "%s %zu %dx%d %.2f\n", work.name, num_bytes, shape.first, shape.second, microseconds);
      if (microseconds < best) best = microseconds, best_shape = shape;
    }
    std::printf(
        "{\"work\": \"%s\", \"num_ranks\": %d, \"num_bytes\": %zu, \"dtype\": \"bfloat16\", \"mode\": \"%s\", \"us\": "
        "%.2f, \"best_us\": %.2f, \"best_grid\": \"%dx%d\", \"busbw\": %.1f, \"num_wrong\": %zu, "
        "\"num_zero_copy\": %u}\n",
        work.name, ranks_.size(), num_bytes, options_.in_graph ? "graph" : "eager", by_default, best, best_shape.first,
        best_shape.second, work.bus_factor(ranks_.size()) * static_cast<double>(num_bytes) / best / 1000, num_wrong,
        num_zero_copy() - first_zero_copy);
    std::fflush(stdout);
  }

  void run() {
    for (const Work& work : kWorks) {
      if (!options_.works.empty() &&
          ("," + options_.works + ",").find("," + std::string(work.name) + ",") == std::string::npos)
        continue;
      for (size_t num_bytes = options_.from; num_bytes <= options_.to; num_bytes *= 4) {
        const size_t rounded = num_bytes / (2 * ranks_.size()) * (2 * ranks_.size());
        if (rounded <= work.most_bytes(ranks_.team(0))) report(work, rounded);
      }
    }
    ranks_.synchronize();
    ranks_.expect_no_faults();
  }

 private:
  struct Buffers {
    cuda::DeviceMemory input, output;
    cuda::Event start, end;
    cuda::IpcLocation input_location, output_location;
  };

  std::byte* input(int rank) const { return buffers_[rank].input.data() + options_.misalignment; }
  std::byte* output(int rank) const { return buffers_[rank].output.data() + options_.misalignment; }

  // Counts on rank 0, where a sent message and a received one count one each.
  uint32_t num_zero_copy() const {
    const cuda::TeamState state = ranks_.state(0);
    return state.num_zero_copy + state.num_zero_copy_messages;
  }

  static std::vector<int> devices(const Options& options) {
    std::vector<int> devices(options.num_ranks);
    std::iota(devices.begin(), devices.end(), 0);
    return devices;
  }

  void check_faults() {
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const cuda::FaultReport& fault = ranks_.control(rank).report;
      if (fault.code != cuda::FaultCode::kNone)
        throw std::runtime_error("rank " + std::to_string(rank) + ": " + axon::testing::describe(fault));
    }
  }

  Status enqueue(const Work& work, size_t num_bytes, Shape shape, int rank) {
    return work.enqueue({.team = ranks_.team(rank),
                         .stream = ranks_.stream(rank),
                         .input = input(rank),
                         .output = output(rank),
                         .num_bytes = num_bytes,
                         .shape = shape,
                         .input_location = buffers_[rank].input_location,
                         .output_location = buffers_[rank].output_location});
  }

  // Returns microseconds per operation; negative: not available in this shape.
  float measure(const Work& work, size_t num_bytes, Shape shape) {
    const int num_kernels = static_cast<int>(std::clamp<size_t>((size_t{1} << 30) / num_bytes, 4, 50));
    const int num_samples = num_bytes < (size_t{16} << 20) ? 21 : 7;
    std::vector<std::unique_ptr<axon::testing::Graph>> graphs;
    bool is_served = true;
    const auto enqueue_all = [&](int rank) {
      for (int kernel = 0; kernel < num_kernels; ++kernel) is_served &= enqueue(work, num_bytes, shape, rank).ok();
    };
    if (options_.in_graph) {
      ranks_.for_each([&](int rank) {
        graphs.push_back(std::make_unique<axon::testing::Graph>(ranks_.stream(rank), [&] { enqueue_all(rank); }));
      });
    }
    std::vector<float> samples;
    for (int sample = -2; sample < num_samples && is_served; ++sample) {  // two to warm up
      ranks_.for_each([&](int rank) {
        require(ranks_.stream(rank).record(buffers_[rank].start));
        options_.in_graph ? graphs[rank]->launch(ranks_.stream(rank)) : enqueue_all(rank);
        require(ranks_.stream(rank).record(buffers_[rank].end));
      });
      ranks_.synchronize();
      check_faults();
      float shortest = 1e9f;
      ranks_.for_each([&](int rank) {
        shortest = std::min(shortest, require(buffers_[rank].end.view().microseconds_since(buffers_[rank].start)));
      });
      if (sample >= 0) samples.push_back(shortest / static_cast<float>(num_kernels));
    }
    if (!is_served) return -1;
    std::nth_element(samples.begin(), samples.begin() + num_samples / 2, samples.end());
    return samples[num_samples / 2];
  }

  // Starts from a clean output; checks every 61st element of large outputs.
  size_t count_wrong(const Work& work, size_t num_bytes) {
    ranks_.for_each([&](int rank) { require(cudaMemset(output(rank), 0xFF, num_bytes)); });
    ranks_.for_each([](int) { require(cudaDeviceSynchronize()); });
    ranks_.for_each([&](int rank) { require(enqueue(work, num_bytes, {}, rank)); });
    ranks_.synchronize();
    check_faults();
    const size_t shard = num_bytes / 2 / ranks_.size();
    const size_t num_elements = work.result == Result16::kSumOfShard ? shard : num_bytes / 2;
    const size_t step = num_elements < (size_t{4} << 20) ? 1 : 61;
    size_t num_wrong = 0;
    ranks_.for_each([&](int rank) {
      if (work.result == Result16::kFromRoot && rank == 0) return;
      std::vector<uint16_t> found(num_elements);
      require(cudaMemcpy(found.data(), output(rank), num_elements * 2, cudaMemcpyDeviceToHost));
      for (size_t at = 0; at < num_elements; at += step) {
        num_wrong += found[at] != bfloat16_of(expected(work.result, at, shard, rank, ranks_.size()));
      }
    });
    return num_wrong;
  }

  Options options_;
  axon::testing::DeviceRanks ranks_;
  std::vector<Buffers> buffers_;
};

Options parse(int argc, char** argv) {
  Options options;
  int at = 1;
  if (at < argc && argv[at][0] != '-') options.num_ranks = std::stoi(argv[at++]);
  for (; at + 1 < argc; at += 2) {
    const std::string name = argv[at], value = argv[at + 1];
    if (name == "--mode") options.in_graph = value == "graph";
    if (name == "--works") options.works = value;
    if (name == "--from") options.from = std::stoull(value);
    if (name == "--to") options.to = std::stoull(value);
    if (name == "--misalignment") options.misalignment = std::stoull(value);
    if (name == "--slice") options.slice_bytes = std::stoull(value);
    if (name != "--shapes") continue;
    for (size_t begin = 0; begin < value.size(); begin = value.find(',', begin) + 1) {
      options.shapes.push_back({std::stoi(value.substr(begin)), std::stoi(value.substr(value.find('x', begin) + 1))});
      if (value.find(',', begin) == std::string::npos) break;
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  Bench(parse(argc, argv)).run();
  return 0;
}
