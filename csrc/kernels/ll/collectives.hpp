// Collectives over packets: for small messages, where latency is all. One kernel on the caller's stream each, eager or
// in a CUDA graph; every rank of the team launches the same one. Tensors of any alignment, in place or not.
//
//   AXON_TRY(load_kernels(num_ranks));                                  // once a device, before any launch
//   AXON_TRY(all_reduce_one_shot(team, {.input = in, .output = out, .num_elements = n, …}, stream));
//
// They fail without launching when an argument is unsupported or needs more packets than the team has (the *_packets
// functions tell). What goes wrong on the device stands in the team's control; the output is then undefined.
#pragma once

#include "base/data_type.hpp"
#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/launch.hpp"

namespace axon::kernels::ll {

struct LlCollective {
  const void* input = nullptr;
  void* output = nullptr;   // all_gather: num_ranks times the input, in rank order
  size_t num_elements = 0;  // of the input
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;   // of kPremulSum
  cuda::LaunchShape shape{};  // of the grid, control warps not counted; zeros: chosen by size
};

// Every rank sends its whole input to every other and reduces all of them itself: one flight, (n−1)·S bytes out.
Status all_reduce_one_shot(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream);

// Every rank reduces one shard and sends it to all: two flights, 2(n−1)/n·S bytes out. Ahead at 4 ranks from 256 KB.
Status all_reduce_two_shot(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream);

// Every rank sends its input to every other: one flight, (n−1)·S bytes out.
Status all_gather(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream);

// Packets of a region that an operation on `num_bytes` of input takes.
size_t one_shot_region_packets(int num_ranks, size_t num_bytes) noexcept;
size_t two_shot_region_packets(int num_ranks, size_t num_bytes) noexcept;

// Puts all LL kernels for a team of that size on the current device; load_kernels (kernels/load.hpp) does it,
// too.
Status load_kernels(int num_ranks);

}  // namespace axon::kernels::ll
