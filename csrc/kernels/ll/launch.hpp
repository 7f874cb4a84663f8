// The host side that all packet algorithms share: checks, grid, launch.
#pragma once

#include "kernels/ll/collectives.hpp"

namespace axon::device {

struct PacketPlan {
  DeviceOperation operation{};
  const void* kernel = nullptr;  // null: no such type or reduction
  size_t region_packets = 0;     // descriptors included
  size_t num_packets = 0;        // that one rank's workers deal with at a time
};

inline constexpr size_t packets_for(size_t num_bytes) {
  return (num_bytes + 7) / 8;
}

// The kernel for a team of that size; null where the type has no such reduction.
const void* one_shot_kernel(DataType dtype, Reduction reduction, int num_ranks);
const void* two_shot_kernel(DataType dtype, Reduction reduction, int num_ranks);
const void* all_gather_kernel(int num_ranks);

Status launch_packets(const DeviceTeam& team, const PacketCollective& call, const PacketPlan& plan, StreamView stream);

}  // namespace axon::device
