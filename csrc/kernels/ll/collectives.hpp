// Collectives over the LL protocol, for small messages, where latency dominates. Each is one kernel on the caller's
// stream, eager or in a CUDA graph. Every rank of the team launches the same one. Tensors may have any alignment and be
// in place.
//
//   AXON_TRY(load_kernels(num_ranks));   // once per device, before any launch
//   AXON_TRY(all_reduce_one_shot(team, {.input = in, .output = out, .num_elements = n, …}, stream));
//
// The calls fail without a launch if an argument is unsupported or needs more packets than the team has. The *_packets
// functions return how many it needs. A failure on the device is reported in the team's control, and the output is then
// undefined.
#pragma once

#include "base/data_type.hpp"
#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/launch.hpp"
#include "kernels/calls.hpp"

namespace axon::kernels::ll {

struct LlCollective {
  const void* input = nullptr;
  void* output = nullptr;   // all_gather: num_ranks times the input size, in rank order
  size_t num_elements = 0;  // of the input
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;   // of kPremulSum
  cuda::LaunchShape shape{};  // grid without the control warps; zeros mean a choice by size
  Beside beside = Beside::kNothing;
};

// Every rank sends its whole input to every other rank and reduces all inputs itself. One step; each rank sends (n−1)·S
// bytes.
Status all_reduce_one_shot(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream);

// Every rank reduces one shard and sends the total to all ranks. Two steps; each rank sends 2(n−1)/n·S bytes. Faster
// than one-shot at 4 ranks from 256 KB.
Status all_reduce_two_shot(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream);

// Every rank sends its input to every other rank. One step; each rank sends (n−1)·S bytes.
Status all_gather(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream);

// Returns the number of packets of a region that an operation with `num_bytes` of input needs.
size_t one_shot_region_packets(int num_ranks, size_t num_bytes) noexcept;
size_t two_shot_region_packets(int num_ranks, size_t num_bytes) noexcept;

// Loads all LL kernels for a team of that size onto the current device. load_kernels (kernels/load.hpp) calls it.
Status load_kernels(int num_ranks);

}  // namespace axon::kernels::ll
