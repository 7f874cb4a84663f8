// The structure of every LL kernel: read the epoch, send, advance the epoch, receive.
//
// The last warp of each block is a control warp. It advances the epoch and, in block 0, exchanges the descriptors. The
// other threads are workers and run the algorithm, a class with these members:
//
//   Algorithm(const DeviceTeam&, Workers, const LlArguments&);   // loads what it can before the epoch is known
//   void send(const EpochContext&);                              // does everything that needs no peer
//   void receive(const EpochContext&);                           // does the rest
#pragma once

#include "kernels/barrier.cuh"
#include "kernels/reduce.cuh"

namespace axon::kernels::ll {

inline constexpr int kControlThreads = 32;
inline constexpr int kMaxWorkers = 512;  // per block

struct LlArguments {
  cuda::DeviceDescriptor descriptor;
  ReducePlan plan;
  uint32_t num_packets;  // of the run, or of a rank's shard, that the algorithm processes
  const std::byte* input;
  std::byte* output;
  size_t num_bytes;  // of the input
};

// The numbered workers of all blocks. Worker `first` processes packets first, first + count, …
struct Workers {
  uint32_t first;
  uint32_t count;
};

template <typename Algorithm>
__global__ void __launch_bounds__(kMaxWorkers + kControlThreads)
    ll_kernel(const __grid_constant__ cuda::DeviceTeam team, const __grid_constant__ LlArguments arguments) {
  await_stream();
  const uint32_t epoch = current_epoch(team, blockIdx.x);
  const bool has_failed = load_relaxed(&team.state->fault) != 0;
  const uint32_t num_workers = blockDim.x - kControlThreads;
  const bool is_worker = threadIdx.x < num_workers;
  const Workers workers{blockIdx.x * num_workers + threadIdx.x, gridDim.x * num_workers};
  Algorithm algorithm(team, workers, arguments);

  const EpochContext context(team, arguments.descriptor, epoch);
  if (blockIdx.x == 0 && is_wipe_due(epoch)) {
    wipe_idle_region(context, threadIdx.x, blockDim.x);
    __syncthreads();
  }
  if (is_worker && !has_failed) algorithm.send(context);
  if (!is_worker && !has_failed && blockIdx.x == 0) send_descriptors(context);
  if (__syncthreads_or(has_failed)) return;
  if (is_worker) return algorithm.receive(context);
  advance_epoch(team, epoch, blockIdx.x, gridDim.x);
  if (blockIdx.x == 0) verify(context);
}

}  // namespace axon::kernels::ll
