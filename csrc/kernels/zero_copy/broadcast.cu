// A relayed broadcast. The root divides the tensor into one shard per peer and writes each into that peer's tensor. The
// peer writes the shard into all other peers' tensors as it arrives.
//
// Steps: 2, in one pipeline. Bytes sent by the root: S; sent by a peer: (n−2)/(n−1)·S; received by a peer: S. Source:
// scatter and all_gather (Barnett et al., 1994), both one-sided.
//
// The root's blocks write *stretches* of several spans to each peer in turn, and send it the count written so far.
// There is only one fence per stretch, since a fence waits for everything that its multiprocessor has in flight. (A
// fence after each 8 KiB of a warp: 3450 µs for 1 GiB between 4 H200.) A peer's block waits only for the root's block
// that writes its next stretch, so there is no circular wait.
#include <utility>

#include "kernels/spans.cuh"
#include "kernels/zero_copy/handshake.cuh"

namespace axon::kernels::zero_copy {
namespace {

struct ZeroCopyBroadcastArguments {
  ZeroCopyHandshake handshake;
  std::byte* data;
  uint64_t num_bytes;
  uint64_t shard_bytes;    // except for the last shards
  uint32_t stretch_spans;  // the same on all ranks
};

// Shards are numbered like the root's peers.
struct Shard {
  uint64_t begin;
  uint64_t num_bytes;
};

__device__ __forceinline__ Shard shard_of(const ZeroCopyBroadcastArguments& call, uint32_t number) {
  const uint64_t begin = min(number * call.shard_bytes, call.num_bytes);
  return {begin, min(call.shard_bytes, call.num_bytes - begin)};
}

__device__ __forceinline__ uint64_t count_stretches(const ZeroCopyBroadcastArguments& call, uint64_t num_bytes) {
  return (count_spans(num_bytes) + call.stretch_spans - 1) / call.stretch_spans;
}

// Stretch s of shard p is turn s·(n−1) + p. The blocks take turns in order.
__device__ __forceinline__ void write_shards(const ZeroCopyContext& context, const ZeroCopyBroadcastArguments& call,
                                             const RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
  const auto num_shards = static_cast<uint32_t>(context.team.num_ranks - 1);
  const uint64_t num_turns = num_shards * count_stretches(call, call.shard_bytes);
  uint32_t num_written = 0;
  for (uint64_t at = blockIdx.x; at < num_turns; at += gridDim.x) {
    const uint64_t stretch = at / num_shards;
    const auto number = static_cast<uint32_t>(at - stretch * num_shards);
    const int peer = rank_of_peer(context.team.rank, number);
    const Shard shard = shard_of(call, number);
    for (uint32_t k = 0; k < call.stretch_spans; ++k) {
      copy_span(call.data + shard.begin, remotes[peer].writable + shard.begin, shard.num_bytes,
                stretch * call.stretch_spans + k);
    }
    ++num_written;
    __syncthreads();
    if (threadIdx.x == 0) tell_progress(context, peer, num_written);
  }
}

// Returns false, for all threads, if the root does not get that far.
__device__ __forceinline__ bool pass_on(const ZeroCopyContext& context, const ZeroCopyBroadcastArguments& call,
                                        int root, const RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
  const cuda::DeviceTeam& team = context.team;
  const auto num_shards = static_cast<uint32_t>(team.num_ranks - 1);
  const auto number = static_cast<uint32_t>(team.rank < root ? team.rank : team.rank - 1);
  const Shard shard = shard_of(call, number);
  const uint32_t num_writers = remotes[root].num_blocks;
  const auto to_others = [&](auto store) {
    for (int step = 1; step < team.num_ranks; ++step) {
      const int rank = team.rank + step < team.num_ranks ? team.rank + step : team.rank + step - team.num_ranks;
      if (rank != root) store(remotes[rank].writable + shard.begin);
    }
  };
  for (uint64_t stretch = blockIdx.x; stretch < count_stretches(call, shard.num_bytes); stretch += gridDim.x) {
    const uint64_t at = stretch * num_shards + number, round = at / num_writers;
    const bool has_arrived =
        threadIdx.x != 0 || await_progress(context, root, static_cast<uint32_t>(at - round * num_writers),
                                           static_cast<uint32_t>(round + 1));
    if (__syncthreads_and(has_arrived) == 0) return false;
    for (uint32_t k = 0; k < call.stretch_spans; ++k) {
      copy_span_to_each(call.data + shard.begin, shard.num_bytes, stretch * call.stretch_spans + k, to_others);
    }
  }
  return true;
}

__global__ void __launch_bounds__(kSpanThreads)
    zero_copy_broadcast_kernel(const __grid_constant__ cuda::DeviceTeam team,
                               const __grid_constant__ ZeroCopyBroadcastArguments call) {
  await_stream();
  __shared__ RemoteTensors remotes[cuda::kMaxTeamRanks];
  const ZeroCopyContext context(team, call.handshake.descriptor, current_epoch(team, blockIdx.x));
  (void)find_remote_tensors(context, call.handshake, remotes);
  Action action = agree(context, call.handshake, remotes);
  const auto root = static_cast<int>(call.handshake.descriptor.root);
  if (action == Action::kMove && team.rank == root) {
    write_shards(context, call, remotes);
  } else if (action == Action::kMove && !pass_on(context, call, root, remotes)) {
    action = Action::kGuard;
  }
  finish(context, call.handshake, action, remotes);
}

// Every rank but the root tells all others where its tensor is.
ZeroCopyBroadcastArguments arguments_of(const cuda::DeviceTeam& team, const BroadcastCall& call,
                                        const BroadcastLocations& locations) {
  constexpr uint32_t kStretchSpans = 2;
  ZeroCopyBroadcastArguments arguments{
      .handshake = handshake_of(cuda::DeviceOperation::kBroadcast, DataType::kByte, Reduction::kNone, call.root),
      .data = static_cast<std::byte*>(call.data),
      .num_bytes = call.num_bytes,
      .shard_bytes = shard_stride(call.num_bytes, team.num_ranks - 1),
      .stretch_spans = locations.num_spans != 0 ? static_cast<uint32_t>(locations.num_spans) : kStretchSpans};
  ZeroCopyHandshake& handshake = arguments.handshake;
  handshake.descriptor.num_bytes = call.num_bytes;
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    handshake.links[rank] = {.readable = {},
                             .writable = team.rank != call.root ? locations.data : cuda::IpcLocation{},
                             .bytes_to = call.num_bytes,
                             .bytes_from = call.num_bytes};
  }
  if (call.num_bytes == 0) return arguments;
  handshake.writes = peers_of(team) & ~(1u << call.root);
  handshake.is_aligned_16 = is_aligned_16(call.data) ? 1 : 0;
  return arguments;
}

}  // namespace

const void* broadcast_kernel_address() noexcept {
  return reinterpret_cast<const void*>(&zero_copy_broadcast_kernel);
}

Status broadcast(const cuda::DeviceTeam& team, const BroadcastCall& call, const BroadcastLocations& locations,
                 cuda::StreamView stream) {
  Result<int> num_blocks = count_blocks(locations.num_blocks, cuda::DeviceOperation::kBroadcast, team.num_ranks);
  if (!num_blocks.ok()) return std::move(num_blocks.status());
  ZeroCopyBroadcastArguments arguments = arguments_of(team, call, locations);
  void* parameters[] = {const_cast<cuda::DeviceTeam*>(&team), &arguments};
  return launch(broadcast_kernel_address(), {.num_blocks = num_blocks.value(), .num_threads = kSpanThreads}, parameters,
                stream);
}

}  // namespace axon::kernels::zero_copy
