// Operations over LL128, for all sizes that LL does not serve best, and for point-to-point messages. Each is one kernel
// on the caller's stream, eager or in a CUDA graph. Tensors may have any alignment and size, and be in place.
//
//   AXON_TRY(load_kernels(num_ranks));   // once per device, before any launch
//   AXON_TRY(all_reduce(team, {.input = in, .output = out, .num_elements = n, …}, stream));
//
// Kernels of one team and traffic class run one after the other, in the same order on all ranks that they connect. The
// caller ensures this by streams and events. The calls fail without a launch if an argument is unsupported. A failure
// on the device is reported in the team's control, and the output is then undefined.
#pragma once

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "kernels/calls.hpp"

namespace axon::kernels::ll128 {

// Serves all_gather, all_to_all, gather, scatter, small broadcasts, barrier, and batches of sends and receives, with
// equal or unequal counts. All of these are messages over direct links. One step.
Status exchange(const cuda::DeviceTeam& team, const ExchangeCall& call, cuda::StreamView stream);

// Rank r reduces shard r of all inputs and sends the total to every peer (or to the root), all in one pipeline.
Status all_reduce(const cuda::DeviceTeam& team, const ReduceCall& call, cuda::StreamView stream);

Status reduce_scatter(const cuda::DeviceTeam& team, const ReduceScatterCall& call, cuda::StreamView stream);

// The root scatters, and every other rank passes its shard on at once. The root sends S bytes instead of (n−1)·S. Two
// steps, so exchange is faster for small tensors.
Status broadcast(const cuda::DeviceTeam& team, const BroadcastCall& call, cuda::StreamView stream);

}  // namespace axon::kernels::ll128
