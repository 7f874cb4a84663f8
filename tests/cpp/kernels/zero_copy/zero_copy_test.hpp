// Helpers of the zero-copy tests: both launches of a collective, and a check of which one did the work.
#pragma once

#include "kernels/reference.hpp"
#include "kernels/zero_copy/collectives.hpp"

namespace axon::testing {

// Ranks that share a GPU share its few multiprocessors: all blocks of all ranks must be resident at once.
inline int num_zero_copy_blocks(const Layout& layout) {
  return layout.placement == Placement::kGpuEach ? 0 : 4;
}

// Checks the number of zero-copy operations, and whether the latest fell back; both are the same on all ranks.
inline void expect_states(const DeviceRanks& ranks, uint32_t num_zero_copy, uint32_t must_fall_back,
                          const std::string& what) {
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const cuda::TeamState state = ranks.state(rank);
    EXPECT_EQ(state.num_zero_copy, num_zero_copy) << what << ", rank " << rank;
    EXPECT_EQ(state.must_fall_back, must_fall_back) << what << ", rank " << rank;
  }
}

inline Status all_reduce_either_way(const cuda::DeviceTeam& team, kernels::ReduceCall call,
                                    const kernels::zero_copy::ReduceLocations& locations, cuda::StreamView stream) {
  if (Status status = kernels::zero_copy::all_reduce(team, call, locations, stream); !status.ok()) return status;
  call.when = kernels::When::kIfFallback;
  return kernels::ll128::all_reduce(team, call, stream);
}

inline Status reduce_scatter_either_way(const cuda::DeviceTeam& team, kernels::ReduceScatterCall call,
                                        const kernels::zero_copy::ReduceScatterLocations& locations,
                                        cuda::StreamView stream) {
  if (Status status = kernels::zero_copy::reduce_scatter(team, call, locations, stream); !status.ok()) return status;
  call.when = kernels::When::kIfFallback;
  return kernels::ll128::reduce_scatter(team, call, stream);
}

inline Status broadcast_either_way(const cuda::DeviceTeam& team, kernels::BroadcastCall call,
                                   const kernels::zero_copy::BroadcastLocations& locations, cuda::StreamView stream) {
  if (Status status = kernels::zero_copy::broadcast(team, call, locations, stream); !status.ok()) return status;
  call.when = kernels::When::kIfFallback;
  return kernels::ll128::broadcast(team, call, stream);
}

inline Status exchange_either_way(const cuda::DeviceTeam& team, kernels::ExchangeCall call,
                                  const kernels::zero_copy::ExchangeLocations& locations, cuda::StreamView stream) {
  if (Status status = kernels::zero_copy::exchange(team, call, locations, stream); !status.ok()) return status;
  call.when = kernels::When::kIfFallback;
  return kernels::ll128::exchange(team, call, stream);
}

}  // namespace axon::testing
