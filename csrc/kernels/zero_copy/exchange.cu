// Messages written into the receivers' tensors.
//
// Steps: 1. Bytes sent by a rank: those of its messages. Each block takes spans of all messages in turn, beginning with
// the next rank's. So all ranks write to each rank evenly at once. If the blocks served one peer after another, ranks
// would drift until two write to one rank and none to another. An all_gather of 1 GiB by 16 blocks on 4 H200 then takes
// 2868 µs instead of 2683. Meanwhile some of the blocks copy the rank's message to itself.
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/spans.cuh"
#include "kernels/zero_copy/handshake.cuh"
#include "kernels/zero_copy/turns.cuh"

namespace axon::kernels::zero_copy {
namespace {

// With this many writers, each takes its next turn when it has done the last one (turns.cuh). A broadcast between two
// H200 by 48 blocks, 1 GiB: 2892 µs instead of 2940 with equal shares; 256 MiB: 735 instead of 746. Few writers lose
// more by the barrier of each turn: all_gather of 256 MiB by eight 441 instead of 378 (kernels_zero_copy_2xh200.jsonl).
constexpr uint32_t kFewestForTurns = 48;
constexpr uint32_t kTurnSpans = 2;

struct ZeroCopyExchangeArguments {
  ZeroCopyHandshake handshake;
  uint32_t num_own_blocks;  // blocks that copy the rank's message to itself
  uint64_t num_spans;       // of the largest message to a peer
  std::byte* own_target;
  const std::byte* sources[cuda::kMaxTeamRanks];
};

// The blocks that move a message together.
struct Crew {
  uint32_t number;
  uint32_t count;
};

__device__ __forceinline__ void copy_own(const ZeroCopyExchangeArguments& call, int rank, Crew crew) {
  const uint64_t num_bytes = call.handshake.links[rank].bytes_to;
  for (uint64_t span = crew.number; span < count_spans(num_bytes); span += crew.count) {
    copy_span(call.sources[rank], call.own_target, num_bytes, span);
  }
}

// Writes `num_spans` of one message. Consecutive turns are for consecutive ranks.
__device__ __forceinline__ void write_turn(const cuda::DeviceTeam& team, const ZeroCopyExchangeArguments& call,
                                           const RemoteTensors (&remotes)[cuda::kMaxTeamRanks], uint64_t turn,
                                           uint32_t num_spans) {
  const auto num_peers = static_cast<uint32_t>(team.num_ranks - 1);
  const uint64_t round = turn / num_peers;
  int peer = team.rank + 1 + static_cast<int>(turn - round * num_peers);
  if (peer >= team.num_ranks) peer -= team.num_ranks;
  for (uint32_t k = 0; k < num_spans; ++k) {
    copy_span(call.sources[peer], remotes[peer].writable, call.handshake.links[peer].bytes_to, round * num_spans + k);
  }
}

__device__ __forceinline__ void write_to_peers(const cuda::DeviceTeam& team, const ZeroCopyExchangeArguments& call,
                                               const RemoteTensors (&remotes)[cuda::kMaxTeamRanks], Crew crew) {
  const auto num_peers = static_cast<uint32_t>(team.num_ranks - 1);
  if (crew.count < kFewestForTurns) {
    for (uint64_t turn = crew.number; turn < num_peers * call.num_spans; turn += crew.count) {
      write_turn(team, call, remotes, turn, 1);
    }
    return;
  }
  const uint32_t num_turns = num_peers * static_cast<uint32_t>((call.num_spans + kTurnSpans - 1) / kTurnSpans);
  Turns turns(team.state->num_turns_taken, {.num_turns = num_turns, .num_takers = crew.count});
  for (uint32_t turn; (turn = turns.next()) < num_turns;) write_turn(team, call, remotes, turn, kTurnSpans);
}

__device__ __forceinline__ void move(const cuda::DeviceTeam& team, const ZeroCopyExchangeArguments& call,
                                     const RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
  const uint32_t num_own = call.num_own_blocks;
  if (blockIdx.x < num_own) return copy_own(call, team.rank, {blockIdx.x, num_own});
  write_to_peers(team, call, remotes, {blockIdx.x - num_own, gridDim.x - num_own});
}

__global__ void __launch_bounds__(kSpanThreads)
    zero_copy_exchange_kernel(const __grid_constant__ cuda::DeviceTeam team,
                              const __grid_constant__ ZeroCopyExchangeArguments call) {
  await_stream();
  __shared__ RemoteTensors remotes[cuda::kMaxTeamRanks];
  const ZeroCopyContext context(team, call.handshake.descriptor, current_epoch(team, blockIdx.x));
  (void)find_remote_tensors(context, call.handshake, remotes);
  const Action action = agree(context, call.handshake, remotes);
  if (action == Action::kMove) move(team, call, remotes);
  finish(context, call.handshake, action, remotes);
}

ZeroCopyExchangeArguments arguments_of(const cuda::DeviceTeam& team, const ExchangeCall& call,
                                       const ExchangeLocations& locations) {
  ZeroCopyExchangeArguments arguments{
      .handshake = handshake_of(call.operation, call.dtype, Reduction::kNone, call.root),
      .num_own_blocks = 0,
      .num_spans = 0,
      .own_target = static_cast<std::byte*>(call.receives[team.rank].data),
      .sources = {}};
  ZeroCopyHandshake& handshake = arguments.handshake;
  size_t largest = 0;
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    const SendBuffer& send = call.sends[rank];
    arguments.sources[rank] = static_cast<const std::byte*>(send.data);
    handshake.links[rank] = {.readable = {},
                             .writable = locations.receives[rank],
                             .bytes_to = send.num_bytes,
                             .bytes_from = call.receives[rank].num_bytes};
    largest = std::max({largest, send.num_bytes, call.receives[rank].num_bytes});
    if (send.num_bytes == 0) continue;
    if (!is_aligned_16(send.data)) handshake.is_aligned_16 = 0;
    if (rank == team.rank) continue;
    handshake.writes |= 1u << rank;
    arguments.num_spans = std::max(arguments.num_spans, count_spans(send.num_bytes));
  }
  if (call.sends[team.rank].num_bytes != 0 && !is_aligned_16(arguments.own_target)) handshake.is_aligned_16 = 0;
  handshake.descriptor.num_bytes = largest;  // for reports; ranks agree per link
  return arguments;
}

// In proportion to the bytes written, with at least one block on either side of two or more.
uint32_t count_own_blocks(const cuda::DeviceTeam& team, const ExchangeCall& call, int num_blocks) {
  const SendBuffer& own = call.sends[team.rank];
  if (own.num_bytes == 0 || own.data == call.receives[team.rank].data) return 0;
  size_t all_bytes = 0;
  for (int rank = 0; rank < team.num_ranks; ++rank) all_bytes += call.sends[rank].num_bytes;
  if (all_bytes == own.num_bytes) return static_cast<uint32_t>(num_blocks);
  const auto share = static_cast<size_t>(num_blocks) * own.num_bytes / all_bytes;
  return static_cast<uint32_t>(std::clamp<size_t>(share, 1, static_cast<size_t>(num_blocks) - 1));
}

Status check(const cuda::DeviceTeam& team, const ExchangeCall& call) {
  if (call.traffic != cuda::TrafficClass::kCollective) {
    return Status(ErrorCode::kInvalidArgument,
                  "zero-copy exchange does not serve point-to-point messages: use exchange_messages");
  }
  if (call.sends[team.rank].num_bytes == call.receives[team.rank].num_bytes) return Status();
  return Status(ErrorCode::kInvalidArgument, "this rank sends itself " +
                                                 std::to_string(call.sends[team.rank].num_bytes) + " bytes but takes " +
                                                 std::to_string(call.receives[team.rank].num_bytes));
}

}  // namespace

const void* exchange_kernel_address() noexcept {
  return reinterpret_cast<const void*>(&zero_copy_exchange_kernel);
}

Status exchange(const cuda::DeviceTeam& team, const ExchangeCall& call, const ExchangeLocations& locations,
                cuda::StreamView stream) {
  AXON_TRY(check(team, call));
  Result<int> num_blocks = count_blocks(locations.num_blocks, call.operation, team.num_ranks);
  if (!num_blocks.ok()) return std::move(num_blocks.status());
  const int grid = std::max(num_blocks.value(), 2);  // one may be for the rank's message to itself
  ZeroCopyExchangeArguments arguments = arguments_of(team, call, locations);
  arguments.num_own_blocks = count_own_blocks(team, call, grid);
  void* parameters[] = {const_cast<cuda::DeviceTeam*>(&team), &arguments};
  return launch(exchange_kernel_address(), {.num_blocks = grid, .num_threads = kSpanThreads}, parameters, stream);
}

}  // namespace axon::kernels::zero_copy
