// Collectives that read and write the peers' tensors directly, for large ones, where the links' bandwidth dominates.
// Each is two launches on the caller's stream, eager or in a CUDA graph, the same on every rank:
//
//   AXON_TRY(load_kernels(num_ranks));   // once per device, before any launch
//   AXON_TRY(all_reduce(team, call, {.input = locate(in), .output = locate(out)}, stream));
//   call.when = When::kIfFallback;
//   AXON_TRY(kernels::ll128::all_reduce(team, call, stream));
//
// In the first kernel the ranks vote, and it does all of the work or none. It falls back if one rank cannot access a
// tensor that it needs (its registration is unknown or not mapped yet). It also falls back if one rank has a tensor or
// shard that is not aligned to 16 bytes. Then the LL128 kernel does the work; otherwise that kernel returns at once.
// `call` is what the LL128 kernel gets; its shape is ignored here.
//
// When a zero-copy kernel has ended, whatever its outcome, no peer reads or writes this rank's tensors any more. The
// exception is a peer that was silent for 10 s since the failure, and whose process the host has not seen end.
#pragma once

#include <array>

#include "kernels/ll128/collectives.hpp"

namespace axon::kernels::zero_copy {

// Returns the blocks of a zero-copy kernel: as many as make it fastest, or so few that computation is hardly slowed
// down.
int preferred_blocks(cuda::DeviceOperation operation, Beside beside, int num_ranks) noexcept;

// The locations of the buffers that peers read and write. Empty buffers need no location.
struct ExchangeLocations {
  std::array<cuda::IpcLocation, cuda::kMaxTeamRanks>
      receives{};      // [r]: location of call.receives[r], which rank r writes
  int num_blocks = 0;  // may differ between ranks; 0: as for an otherwise idle GPU
};

struct ReduceLocations {
  cuda::IpcLocation input{};
  cuda::IpcLocation output{};  // on ranks that get the result
  int num_blocks = 0;
};

struct ReduceScatterLocations {
  std::array<cuda::IpcLocation, cuda::kMaxTeamRanks> inputs{};  // [r]: location of call.inputs[r], which rank r reads
  int num_blocks = 0;
};

struct BroadcastLocations {
  cuda::IpcLocation data{};  // location of call.data, except on the root
  int num_blocks = 0;
  int num_spans = 0;  // for tuning: 64 KiB spans that a block writes per signal; same on all ranks
};

// Every rank writes its messages into the receivers' tensors. One step; each rank sends (n−1)·S bytes. Only on the
// collective traffic class.
Status exchange(const cuda::DeviceTeam& team, const ExchangeCall& call, const ExchangeLocations& locations,
                cuda::StreamView stream);

// For more than two ranks. The root writes a shard into each peer's tensor, and the peer passes it on to the others.
// The root sends S bytes.
Status broadcast(const cuda::DeviceTeam& team, const BroadcastCall& call, const BroadcastLocations& locations,
                 cuda::StreamView stream);

// Rank r reads shard r of all inputs and writes the total into all outputs, or only the root's. Gives the same bits as
// kernels::ll128::all_reduce.
Status all_reduce(const cuda::DeviceTeam& team, const ReduceCall& call, const ReduceLocations& locations,
                  cuda::StreamView stream);

// Rank r reads shard r of all inputs.
Status reduce_scatter(const cuda::DeviceTeam& team, const ReduceScatterCall& call,
                      const ReduceScatterLocations& locations, cuda::StreamView stream);

}  // namespace axon::kernels::zero_copy
