// Host code shared by all LL algorithms: argument checks, grid, launch.
#pragma once

#include "kernels/ll/collectives.hpp"

namespace axon::kernels::ll {

struct LlPlan {
  cuda::DeviceOperation operation{};
  const void* kernel = nullptr;  // null: no kernel for the type or reduction
  size_t region_packets = 0;     // including descriptors
  size_t num_packets = 0;        // that one rank's workers process at a time
};

inline constexpr size_t packets_for(size_t num_bytes) {
  return (num_bytes + 7) / 8;
}

// Returns the kernel for a team of that size, or null if the type has no such reduction.
const void* ll_one_shot_kernel(DataType dtype, Reduction reduction, int num_ranks);
const void* ll_two_shot_kernel(DataType dtype, Reduction reduction, int num_ranks);
const void* ll_all_gather_kernel(int num_ranks);

Status launch(const cuda::DeviceTeam& team, const LlCollective& call, const LlPlan& plan, cuda::StreamView stream);

}  // namespace axon::kernels::ll
