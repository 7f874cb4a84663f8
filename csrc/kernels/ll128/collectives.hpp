// Operations over LL128: for all sizes that packets do not serve best, and for point-to-point messages. One kernel on
// the caller's stream each, eager or in a CUDA graph. Tensors of any alignment and size, in place or not.
//
//   AXON_TRY(load_kernels(num_ranks));                                  // once a device, before any launch
//   AXON_TRY(all_reduce(team, {.input = in, .output = out, .num_elements = n, …}, stream));
//
// Kernels of one team and traffic class run one after the other, in the same order on all ranks that they connect; the
// caller sees to that, by streams and events. They fail without launching when an argument is unsupported. What goes
// wrong on the device stands in the team's control; the output is then undefined.
#pragma once

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "kernels/calls.hpp"

namespace axon::kernels::ll128 {

// All_gather, all_to_all, gather, scatter, small broadcasts, barrier, and batches of sends and receives, even or not:
// all of these are messages over direct links. One flight.
Status exchange(const cuda::DeviceTeam& team, const ExchangeCall& call, cuda::StreamView stream);

// Rank r reduces shard r of all inputs and sends the total to every peer (or to the root), all in one pipeline.
Status all_reduce(const cuda::DeviceTeam& team, const ReduceCall& call, cuda::StreamView stream);

Status reduce_scatter(const cuda::DeviceTeam& team, const ReduceScatterCall& call, cuda::StreamView stream);

// The root scatters, every other rank passes its shard on at once: S bytes out of the root instead of (n−1)·S. Two
// flights, so exchange is ahead for small ones.
Status broadcast(const cuda::DeviceTeam& team, const BroadcastCall& call, cuda::StreamView stream);

}  // namespace axon::kernels::ll128
