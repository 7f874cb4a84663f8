// The host side that all LL algorithms share: checks, grid, launch.
#pragma once

#include "kernels/ll/collectives.hpp"

namespace axon::kernels::ll {

struct LlPlan {
  cuda::DeviceOperation operation{};
  const void* kernel = nullptr;  // null: no such type or reduction
  size_t region_packets = 0;     // descriptors included
  size_t num_packets = 0;        // that one rank's workers deal with at a time
};

inline constexpr size_t packets_for(size_t num_bytes) {
  return (num_bytes + 7) / 8;
}

// The kernel for a team of that size; null where the type has no such reduction.
const void* ll_one_shot_kernel(DataType dtype, Reduction reduction, int num_ranks);
const void* ll_two_shot_kernel(DataType dtype, Reduction reduction, int num_ranks);
const void* ll_all_gather_kernel(int num_ranks);

Status launch(const cuda::DeviceTeam& team, const LlCollective& call, const LlPlan& plan, cuda::StreamView stream);

}  // namespace axon::kernels::ll
