// Messages over direct edges: each is cut in frames, dealt out over the lanes of its edge.
//
// Steps: 1. Bytes out a rank: what it sends, 16/15 on the wire. Sending and receiving warps share nothing, so both
// directions run at once and no order of calls can deadlock. The own block is copied by warps of its own meanwhile.
#include <algorithm>
#include <string>
#include <utility>

#include "device/line_kernel.cuh"
#include "device/line_launch.hpp"

namespace axon {
namespace device {
namespace {

struct ExchangeBlock {
  const std::byte* send;
  std::byte* receive;
  uint64_t send_bytes;
  uint64_t receive_bytes;
  uint32_t send_tag;
  uint32_t receive_tag;
};

struct ExchangeArguments {
  DeviceDescriptor descriptor;  // its num_bytes is filled in for each edge
  Channel channel;
  JobTable jobs;
  ExchangeBlock blocks[kMaxTeamRanks];
};

__device__ __forceinline__ DeviceDescriptor descriptor_of(const ExchangeArguments& call, uint64_t num_bytes) {
  DeviceDescriptor descriptor = call.descriptor;
  descriptor.num_bytes = num_bytes;
  return descriptor;
}

// At the head of a point-to-point message: what it is, in thread 0's first granule.
__device__ __forceinline__ bool send_header(OutLanes& out, const Site& site, int peer, uint32_t tag) {
  Share header[1]{};
  if (thread_of_warp() == 0) header[0].first = {*reinterpret_cast<const uint64_t*>(&site.ours), tag};
  if (!out.await_room(1)) return false;
  out.send(peer, 1, header);
  return true;
}

__device__ __forceinline__ bool receive_header(InLanes& in, const Site& site, int peer, uint32_t tag) {
  Share header[1];
  if (!in.receive(peer, 1, header)) return false;
  const uint64_t theirs = __shfl_sync(kWholeWarp, header[0].first.low, 0);
  const uint64_t their_tag = __shfl_sync(kWholeWarp, header[0].first.high, 0);
  if (theirs == *reinterpret_cast<const uint64_t*>(&site.ours) && their_tag == tag) return true;
  if (thread_of_warp() == 0) {
    report_fault(site.team, {.code = FaultCode::kMismatch,
                             .peer = peer,
                             .sequence = 0,
                             .ours = site.ours,
                             .theirs = *reinterpret_cast<const DeviceDescriptor*>(&theirs),
                             .our_tag = tag,
                             .their_tag = static_cast<uint32_t>(their_tag)});
  }
  return false;
}

__device__ __forceinline__ void copy_own(const ExchangeBlock& block, const Job& job) {
  const InputMessage input(block.send, block.send_bytes);
  const OutputMessage output(block.receive, block.receive_bytes);
  for (Stride<kMaxBatch> stride(input.num_frames(), job.num_lanes, job.lane); stride.has_more(); stride.advance()) {
    Share shares[kMaxBatch];
    load(input, stride, shares);
    store(output, stride, shares);
  }
}

__global__ void __launch_bounds__(32 * kMaxWarps)
    exchange_kernel(const __grid_constant__ DeviceTeam team, const __grid_constant__ ExchangeArguments call) {
  Job job;
  if (!find_job(call.jobs, job) || load_relaxed(&team.state->fault) != 0) return;
  if (job.group == kOwnGroup) return copy_own(call.blocks[team.rank], job);
  if (job.group == kControlGroup) {
    const ExchangeBlock& block = call.blocks[min(thread_of_warp(), static_cast<uint32_t>(team.num_ranks) - 1)];
    return meet(team, descriptor_of(call, block.send_bytes), descriptor_of(call, block.receive_bytes));
  }
  const bool sends = job.group < kInGroups;
  const int peer = rank_of_peer(team.rank, job.group - (sends ? kOutGroups : kInGroups));
  const ExchangeBlock& block = call.blocks[peer];
  const DeviceDescriptor ours = descriptor_of(call, sends ? block.send_bytes : block.receive_bytes);
  const Site site{team, team.layout.channels[static_cast<int>(call.channel)], ours};
  const bool has_header = call.channel == Channel::kPointToPoint && job.lane == 0;
  if (sends) {
    OutLanes out(site, 1u << peer, job.lane);
    if (has_header && !send_header(out, site, peer, block.send_tag)) return;
    send_message(out, InputMessage(block.send, block.send_bytes), peer, job);
  } else {
    InLanes in(site, 1u << peer, job.lane);
    if (has_header && !receive_header(in, site, peer, block.receive_tag)) return;
    receive_message(in, OutputMessage(block.receive, block.receive_bytes), peer, job);
  }
}

ExchangeArguments arguments_of(const DeviceTeam& team, const LineExchange& call) {
  ExchangeArguments arguments{.descriptor = {.operation = static_cast<uint64_t>(call.operation),
                                             .dtype = static_cast<uint64_t>(call.dtype),
                                             .reduction = static_cast<uint64_t>(Reduction::kNone),
                                             .root = static_cast<uint64_t>(call.root),
                                             .num_bytes = 0},
                              .channel = call.channel,
                              .jobs = {},
                              .blocks = {}};
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    arguments.blocks[rank] = {.send = static_cast<const std::byte*>(call.sends[rank].data),
                              .receive = static_cast<std::byte*>(call.receives[rank].data),
                              .send_bytes = call.sends[rank].num_bytes,
                              .receive_bytes = call.receives[rank].num_bytes,
                              .send_tag = call.sends[rank].tag,
                              .receive_tag = call.receives[rank].tag};
  }
  return arguments;
}

// A point-to-point message has a lane even when it is empty: for its header.
JobPlan plan_jobs(const DeviceTeam& team, const LineExchange& call, uint32_t num_lanes) {
  JobPlan plan(team.rank, num_lanes);
  const bool is_collective = call.channel == Channel::kCollective;
  if (is_collective) plan.add_control();
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    const SendBlock& send = call.sends[rank];
    const ReceiveBlock& receive = call.receives[rank];
    if (rank == team.rank) {
      if (send.data != receive.data) plan.add_own(plan.lanes_for(send.num_bytes));
      continue;
    }
    const uint32_t fewest = is_collective ? 0 : 1;
    if (is_collective || (call.sends_to >> rank & 1) != 0) {
      plan.add_send(rank, std::max(plan.lanes_for(send.num_bytes), fewest));
    }
    if (is_collective || (call.receives_from >> rank & 1) != 0) {
      plan.add_receive(rank, std::max(plan.lanes_for(receive.num_bytes), fewest));
    }
  }
  return plan;
}

}  // namespace

const void* exchange_kernel_address() noexcept {
  return reinterpret_cast<const void*>(&exchange_kernel);
}

}  // namespace device

Status exchange_lines(const DeviceTeam& team, const LineExchange& call, StreamView stream) {
  if (call.sends[team.rank].num_bytes != call.receives[team.rank].num_bytes) {
    return Status(ErrorCode::kInvalidArgument,
                  "a rank sends itself " + std::to_string(call.sends[team.rank].num_bytes) + " bytes but takes " +
                      std::to_string(call.receives[team.rank].num_bytes));
  }
  // One message alone may fill the link, so point-to-point lanes are all used.
  const uint32_t available = team.layout.channels[static_cast<int>(call.channel)].num_lanes;
  uint32_t num_lanes = available;
  if (call.channel == Channel::kCollective || call.shape.num_lanes != 0) {
    Result<uint32_t> chosen = device::choose_lanes(team, available, call.shape);
    if (!chosen.ok()) return std::move(chosen.status());
    num_lanes = chosen.value();
  }
  const device::JobPlan plan = device::plan_jobs(team, call, num_lanes);
  Result<LaunchShape> grid = plan.grid(call.shape);
  if (!grid.ok()) return std::move(grid.status());
  device::ExchangeArguments arguments = device::arguments_of(team, call);
  arguments.jobs = plan.table();
  void* parameters[] = {const_cast<DeviceTeam*>(&team), &arguments};
  return launch(device::exchange_kernel_address(), grid.value(), parameters, stream);
}

}  // namespace axon
