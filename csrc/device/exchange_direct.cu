// Messages written into the receivers' tensors.
//
// Steps: 1. Bytes out a rank: what it sends. All blocks write to one peer after the other, beginning with the next
// rank, so that no peer is everybody's at a time. By ordinary stores: a multiprocessor writes ~50 GB/s either way, and
// these need no shared memory. The own block is copied by some of the blocks meanwhile.
#include <algorithm>
#include <string>
#include <utility>

#include "device/direct_meeting.cuh"
#include "device/message.cuh"

namespace axon {
namespace device {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // granules a thread

struct DirectExchangeArguments {
  DirectMeeting meeting;
  uint32_t num_own_blocks;  // blocks that copy the own message
  std::byte* own_target;
  const std::byte* sources[kMaxTeamRanks];
};

// The blocks that move a message together.
struct Crew {
  uint32_t number;
  uint32_t count;
};

__device__ __forceinline__ void copy(const std::byte* source, std::byte* target, uint64_t num_bytes, Crew crew) {
  const uint64_t num_granules = num_bytes / kGranuleBytes;
  const uint4* from = reinterpret_cast<const uint4*>(source);
  uint4* to = reinterpret_cast<uint4*>(target);
  constexpr uint64_t kSpan = uint64_t{kThreads} * kInFlight;
  for (uint64_t first = crew.number * kSpan + threadIdx.x; first < num_granules; first += crew.count * kSpan) {
    uint4 granules[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * kThreads < num_granules) granules[k] = __ldcg(from + first + k * kThreads);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * kThreads < num_granules) to[first + k * kThreads] = granules[k];
    }
  }
  const uint64_t num_even = num_granules * kGranuleBytes;
  if (num_even == num_bytes || crew.number != 0 || threadIdx.x != 0) return;
  store_odd_granule(target + num_even, num_bytes - num_even, 0,
                    load_odd_granule(source + num_even, num_bytes - num_even));
}

__device__ __forceinline__ void move(const DeviceTeam& team, const DirectExchangeArguments& call,
                                     const Reach (&reaches)[kMaxTeamRanks]) {
  const uint32_t num_own = call.num_own_blocks;
  const bool is_own = blockIdx.x < num_own;
  const Crew crew = is_own ? Crew{blockIdx.x, num_own} : Crew{blockIdx.x - num_own, gridDim.x - num_own};
  int rank = team.rank;
  for (int step = is_own ? 0 : 1; step < (is_own ? 1 : team.num_ranks); ++step) {
    if (step != 0 && ++rank == team.num_ranks) rank = 0;
    copy(call.sources[rank], is_own ? call.own_target : reaches[rank].writable, call.meeting.edges[rank].bytes_to,
         crew);
  }
}

__global__ void __launch_bounds__(kThreads)
    direct_exchange(const __grid_constant__ DeviceTeam team, const __grid_constant__ DirectExchangeArguments call) {
  __shared__ Reach reaches[kMaxTeamRanks];
  const DirectTurn turn(team, call.meeting.descriptor, current_epoch(team, blockIdx.x));
  const Course course = enter(turn, call.meeting, reaches);
  if (course == Course::kMove) move(team, call, reaches);
  leave(turn, course, reaches);
}

DirectExchangeArguments arguments_of(const DeviceTeam& team, const LineExchange& call, const ExchangePlaces& places) {
  DirectExchangeArguments arguments{.meeting = meeting_of(call.operation, call.dtype, Reduction::kNone, call.root),
                                    .num_own_blocks = 0,
                                    .own_target = static_cast<std::byte*>(call.receives[team.rank].data),
                                    .sources = {}};
  DirectMeeting& meeting = arguments.meeting;
  size_t largest = 0;
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    const SendBlock& send = call.sends[rank];
    arguments.sources[rank] = static_cast<const std::byte*>(send.data);
    meeting.edges[rank] = {.readable = {},
                           .writable = places.receives[rank],
                           .bytes_to = send.num_bytes,
                           .bytes_from = call.receives[rank].num_bytes};
    largest = std::max({largest, send.num_bytes, call.receives[rank].num_bytes});
    if (send.num_bytes == 0) continue;
    if (rank != team.rank) meeting.writes |= 1u << rank;
    if (!is_even(send.data)) meeting.is_even = 0;
  }
  if (call.sends[team.rank].num_bytes != 0 && !is_even(arguments.own_target)) meeting.is_even = 0;
  meeting.descriptor.num_bytes = largest;  // for reports; what is agreed on is an edge's
  return arguments;
}

// In proportion to what there is to write, at least one on either side of two or more.
uint32_t count_own_blocks(const DeviceTeam& team, const LineExchange& call, int num_blocks) {
  const SendBlock& own = call.sends[team.rank];
  if (own.num_bytes == 0 || own.data == call.receives[team.rank].data) return 0;
  size_t all_bytes = 0;
  for (int rank = 0; rank < team.num_ranks; ++rank) all_bytes += call.sends[rank].num_bytes;
  if (all_bytes == own.num_bytes) return static_cast<uint32_t>(num_blocks);
  const auto share = static_cast<size_t>(num_blocks) * own.num_bytes / all_bytes;
  return static_cast<uint32_t>(std::clamp<size_t>(share, 1, static_cast<size_t>(num_blocks) - 1));
}

Status check(const DeviceTeam& team, const LineExchange& call) {
  if (call.channel != Channel::kCollective) {
    return Status(ErrorCode::kInvalidArgument, "point-to-point messages go over lines");
  }
  if (call.sends[team.rank].num_bytes == call.receives[team.rank].num_bytes) return Status();
  return Status(ErrorCode::kInvalidArgument, "a rank sends itself " + std::to_string(call.sends[team.rank].num_bytes) +
                                                 " bytes but takes " +
                                                 std::to_string(call.receives[team.rank].num_bytes));
}

}  // namespace

const void* direct_exchange_kernel() noexcept {
  return reinterpret_cast<const void*>(&direct_exchange);
}

}  // namespace device

Status exchange_direct(const DeviceTeam& team, const LineExchange& call, const ExchangePlaces& places,
                       StreamView stream) {
  AXON_TRY(device::check(team, call));
  Result<int> num_blocks = device::count_blocks(places.num_blocks, call.operation);
  if (!num_blocks.ok()) return std::move(num_blocks.status());
  const int grid = std::max(num_blocks.value(), 2);  // one may be for the own message
  device::DirectExchangeArguments arguments = device::arguments_of(team, call, places);
  arguments.num_own_blocks = device::count_own_blocks(team, call, grid);
  void* parameters[] = {const_cast<DeviceTeam*>(&team), &arguments};
  return launch(device::direct_exchange_kernel(), {.num_blocks = grid, .num_threads = device::kThreads}, parameters,
                stream);
}

}  // namespace axon
