// Collectives that read and write the peers' tensors themselves: for large ones, where the links' bandwidth is all. Two
// launches on the caller's stream each, eager or in a CUDA graph, the same on every rank:
//
//   AXON_TRY(load_kernels(num_ranks));                                  // once a device, before any launch
//   AXON_TRY(all_reduce(team, call, {.input = location_of(in), .output = location_of(out)}, stream));
//   call.when = When::kIfFallback;
//   AXON_TRY(kernels::ll128::all_reduce(team, call, stream));
//
// The first has the ranks vote and does all or nothing: it falls back where one rank cannot reach a tensor that it
// needs (its segment is unknown or not mapped yet), or where one has a tensor, or a shard, off 16 bytes. Then the LL128
// kernel does the work; otherwise that returns at once. `call` is what the LL128 kernel gets; its shape does not matter
// here.
//
// When a zero-copy kernel has ended, whatever its outcome, no peer reads or writes this rank's tensors any more; but
// for one that has not been heard of for 10 s since the failure, and whose process the host has not seen end.
#pragma once

#include <array>

#include "kernels/ll128/collectives.hpp"

namespace axon::kernels::zero_copy {

// What runs on the GPU at the same time, and needs its multiprocessors.
enum class Beside : uint8_t { kNothing, kComputation };

// How many a zero-copy kernel takes: as many as make it fastest, or so few that computation hardly feels them.
int preferred_blocks(cuda::DeviceOperation operation, Beside beside, int num_ranks) noexcept;

// Where peers find what they read and write. Empty ones need no location.
struct ExchangeLocations {
  std::array<cuda::IpcLocation, cuda::kMaxTeamRanks> receives{};  // [r]: of call.receives[r], which rank r writes
  int num_blocks = 0;  // each rank has its own; 0: as for a GPU that does nothing else
};

struct ReduceLocations {
  cuda::IpcLocation input{};
  cuda::IpcLocation output{};  // of the ranks that get the result
  int num_blocks = 0;
};

struct ReduceScatterLocations {
  std::array<cuda::IpcLocation, cuda::kMaxTeamRanks> inputs{};  // [r]: of call.inputs[r], which rank r reads
  int num_blocks = 0;
};

struct BroadcastLocations {
  cuda::IpcLocation data{};  // of call.data, but on the root
  int num_blocks = 0;
  int num_spans = 0;  // for tuning: of 64 KiB, that a block writes before it tells; the same on all ranks
};

// Every rank writes its messages into the receivers' tensors. One flight; (n−1)·S bytes out of a rank. On the
// collective traffic class only.
Status exchange(const cuda::DeviceTeam& team, const ExchangeCall& call, const ExchangeLocations& locations,
                cuda::StreamView stream);

// For more than two ranks: the root writes a part into each peer's tensor, which passes it on to the others. S bytes
// out of the root.
Status broadcast(const cuda::DeviceTeam& team, const BroadcastCall& call, const BroadcastLocations& locations,
                 cuda::StreamView stream);

// Rank r reads shard r of all inputs and writes the total into all outputs, or the root's. The same bits as
// kernels::ll128::all_reduce gives.
Status all_reduce(const cuda::DeviceTeam& team, const ReduceCall& call, const ReduceLocations& locations,
                  cuda::StreamView stream);

// Rank r reads shard r of all inputs.
Status reduce_scatter(const cuda::DeviceTeam& team, const ReduceScatterCall& call,
                      const ReduceScatterLocations& locations, cuda::StreamView stream);

}  // namespace axon::kernels::zero_copy
