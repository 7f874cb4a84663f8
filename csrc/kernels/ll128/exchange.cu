// Messages over direct links. Each is divided into chunks, which are distributed over the channels of its link.
//
// Steps: 1. Bytes sent by a rank: those of its messages, 16/15 of that on the wire. Sending and receiving warps share
// nothing, so both directions run at once and no order of calls can deadlock. Meanwhile other warps copy the rank's
// message to itself. A large point-to-point message is written into the receiver's tensor instead, if that is mapped.
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/ll128/launch.hpp"
#include "kernels/zero_copy/handshake.cuh"
#include "kernels/zero_copy/point_to_point.cuh"
#include "kernels/zero_copy/point_to_point.hpp"

namespace axon::kernels::ll128 {
namespace {

struct ExchangeArguments {
  cuda::DeviceDescriptor descriptor;  // num_bytes is filled in for each link's message
  cuda::TrafficClass traffic;
  When when;
  JobTable jobs;
  zero_copy::MessageLocations zero_copy;
  PeerMessages messages[cuda::kMaxTeamRanks];
};

// Returns the header channels of each message.
__host__ __device__ constexpr uint32_t num_header_channels(cuda::TrafficClass traffic) {
  return traffic == cuda::TrafficClass::kPointToPoint ? 1 : 0;
}

__device__ __forceinline__ cuda::DeviceDescriptor descriptor_of(const ExchangeArguments& call, uint64_t num_bytes) {
  cuda::DeviceDescriptor descriptor = call.descriptor;
  descriptor.num_bytes += num_bytes;
  return descriptor;
}

__device__ __forceinline__ void copy_own(const PeerMessages& messages, const Job& job) {
  const InputMessage input(messages.send, messages.send_bytes);
  const OutputMessage output(messages.receive, messages.receive_bytes);
  for (Stride<kBatchChunks> stride(input.num_chunks(), job.num_channels, job.channel); stride.has_more();
       stride.advance()) {
    Share shares[kBatchChunks];
    load(input, stride, shares);
    store(output, stride, shares);
  }
}

// The ranks of an all_to_all do not know of each other how large it is, so peers may have launched a zero-copy kernel.
__device__ __forceinline__ void control(const cuda::DeviceTeam& team, const ExchangeArguments& call, uint32_t fault) {
  const PeerMessages& messages = call.messages[min(thread_of_warp(), static_cast<uint32_t>(team.num_ranks) - 1)];
  const cuda::DeviceDescriptor to_peer = descriptor_of(call, messages.send_bytes);
  const uint32_t epoch = meet(team, fault, call.when, to_peer, descriptor_of(call, messages.receive_bytes));
  const bool is_all_to_all = static_cast<cuda::DeviceOperation>(to_peer.operation) == cuda::DeviceOperation::kAllToAll;
  if (is_all_to_all && call.when == When::kAlways)
    zero_copy::vote_to_fall_back(zero_copy::ZeroCopyContext(team, to_peer, epoch));
}

// For a message that is zero-copy if possible. Returns whether this warp must move its part over LL128.
__device__ __forceinline__ bool run_zero_copy(const WaitContext& wait_context, const ExchangeArguments& call, int peer,
                                              const Job& job) {
  const PeerMessages& messages = call.messages[peer];
  if (job.group < kInGroups) {
    if (job.channel != 0) return zero_copy::sends_by_ll128(wait_context, messages, peer, job);
    zero_copy::lead_sending(wait_context, messages, peer, job.num_channels);
  } else {
    if (job.channel != 0) return zero_copy::receives_by_ll128(wait_context, messages, peer, job.num_channels);
    zero_copy::lead_receiving(wait_context, messages, call.zero_copy.receives[peer], peer, job.num_channels);
  }
  return false;
}

template <bool kMayBeZeroCopy>
__device__ __forceinline__ void do_job(const cuda::DeviceTeam& team, const ExchangeArguments& call, const Job& job,
                                       uint32_t fault) {
  if (job.group == kOwnGroup) return copy_own(call.messages[team.rank], job);
  if (job.group == kControlGroup) return control(team, call, fault);
  const bool sends = job.group < kInGroups;
  const int peer = rank_of_peer(team.rank, job.group - (sends ? kOutGroups : kInGroups));
  const PeerMessages& messages = call.messages[peer];
  const cuda::DeviceDescriptor ours = descriptor_of(call, sends ? messages.send_bytes : messages.receive_bytes);
  const WaitContext wait_context{team, team.layout.traffic[static_cast<int>(call.traffic)], ours, fault};
  const bool is_zero_copy =
      kMayBeZeroCopy && ((sends ? call.zero_copy.sends_to : call.zero_copy.receives_from) >> peer & 1) != 0;
  if (is_zero_copy && !run_zero_copy(wait_context, call, peer, job)) return;
  const uint32_t header_channels = num_header_channels(call.traffic);
  if (job.channel < header_channels) {
    (void)(sends ? send_header(wait_context, peer, messages.send_tag)
                 : receive_header(wait_context, peer, messages.receive_tag));
    return;
  }
  const Job part{job.group, job.channel - header_channels, job.num_channels - header_channels, job.num_warps};
  sends ? send_part(wait_context, messages, peer, job.channel, part)
        : receive_part(wait_context, messages, peer, job.channel, part);
}

// kMayBeZeroCopy: some of its point-to-point messages are zero-copy if possible.
template <bool kMayBeZeroCopy>
__global__ void __launch_bounds__(32 * kMostWarpsPerBlock)
    ll128_exchange_kernel(const __grid_constant__ cuda::DeviceTeam team,
                          const __grid_constant__ ExchangeArguments call) {
  await_stream();
  const uint32_t fault = load_relaxed(&team.state->fault);
  Job job;
  if (!find_job(call.jobs, job) || !has_work(team, call.when)) return;
  do {
    do_job<kMayBeZeroCopy>(team, call, job, fault);
  } while (job.advance());
}

ExchangeArguments arguments_of(const cuda::DeviceTeam& team, const ExchangeCall& call,
                               const zero_copy::MessageLocations& zero_copy) {
  ExchangeArguments arguments{.descriptor = {.operation = static_cast<uint64_t>(call.operation),
                                             .dtype = static_cast<uint64_t>(call.dtype),
                                             .reduction = static_cast<uint64_t>(Reduction::kNone),
                                             .root = static_cast<uint64_t>(call.root),
                                             .num_bytes = call.barrier_bits},
                              .traffic = call.traffic,
                              .when = call.when,
                              .jobs = {},
                              .zero_copy = zero_copy,
                              .messages = {}};
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    arguments.messages[rank] = {.send = static_cast<const std::byte*>(call.sends[rank].data),
                                .receive = static_cast<std::byte*>(call.receives[rank].data),
                                .send_bytes = call.sends[rank].num_bytes,
                                .receive_bytes = call.receives[rank].num_bytes,
                                .send_tag = call.sends[rank].tag,
                                .receive_tag = call.receives[rank].tag};
  }
  return arguments;
}

JobPlan plan_jobs(const cuda::DeviceTeam& team, const ExchangeCall& call, ChannelLimits limits) {
  size_t largest = 0;
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    largest = std::max({largest, call.sends[rank].num_bytes, call.receives[rank].num_bytes});
  }
  JobPlan plan(team.rank, limits, choose_jobs_per_warp(call.beside, largest));
  const bool is_collective = call.traffic == cuda::TrafficClass::kCollective;
  const uint32_t header_channels = num_header_channels(call.traffic);
  if (is_collective) plan.add_control();
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    const SendBuffer& send = call.sends[rank];
    const ReceiveBuffer& receive = call.receives[rank];
    if (rank == team.rank) {
      if (send.data != receive.data) plan.add_own(plan.channels_for(send.num_bytes));
      continue;
    }
    if (is_collective || (call.sends_to >> rank & 1) != 0) {
      plan.add_send(rank, header_channels + plan.channels_for(send.num_bytes));
    }
    if (is_collective || (call.receives_from >> rank & 1) != 0) {
      plan.add_receive(rank, header_channels + plan.channels_for(receive.num_bytes));
    }
  }
  return plan;
}

Status launch_exchange(const cuda::DeviceTeam& team, const ExchangeCall& call,
                       const zero_copy::MessageLocations& zero_copy, cuda::StreamView stream) {
  const bool may_be_zero_copy = (zero_copy.sends_to | zero_copy.receives_from) != 0;
  if (call.beside == Beside::kComputation && call.traffic == cuda::TrafficClass::kPointToPoint) {
    return Status(ErrorCode::kInvalidArgument, "point-to-point messages have a warp for each channel");
  }
  if (may_be_zero_copy && (call.traffic != cuda::TrafficClass::kPointToPoint || call.when != When::kAlways)) {
    return Status(ErrorCode::kInvalidArgument, "messages that may be zero-copy must be point-to-point traffic");
  }
  if (call.sends[team.rank].num_bytes != call.receives[team.rank].num_bytes) {
    return Status(ErrorCode::kInvalidArgument,
                  "this rank sends itself " + std::to_string(call.sends[team.rank].num_bytes) + " bytes but takes " +
                      std::to_string(call.receives[team.rank].num_bytes));
  }
  const uint32_t available =
      team.layout.traffic[static_cast<int>(call.traffic)].num_channels - num_header_channels(call.traffic);
  Result<ChannelLimits> limits = call.traffic == cuda::TrafficClass::kCollective
                                     ? choose_channels(available, static_cast<uint32_t>(team.num_ranks - 1), call.shape)
                                     : choose_message_channels(available, call.shape);
  if (!limits.ok()) return std::move(limits.status());
  const JobPlan plan = plan_jobs(team, call, limits.value());
  Result<cuda::LaunchShape> grid =
      plan.grid(call.shape, kMostWarpsPerBlock, may_be_zero_copy ? kMostBlocks : kPreferredBlocks);
  if (!grid.ok()) return std::move(grid.status());
  ExchangeArguments arguments = arguments_of(team, call, zero_copy);
  arguments.jobs = plan.table();
  void* parameters[] = {const_cast<cuda::DeviceTeam*>(&team), &arguments};
  const void* kernel = may_be_zero_copy ? message_kernel_address() : exchange_kernel_address();
  return launch(kernel, grid.value(), parameters, stream);
}

}  // namespace

const void* exchange_kernel_address() noexcept {
  return reinterpret_cast<const void*>(&ll128_exchange_kernel<false>);
}

const void* message_kernel_address() noexcept {
  return reinterpret_cast<const void*>(&ll128_exchange_kernel<true>);
}

Status exchange(const cuda::DeviceTeam& team, const ExchangeCall& call, cuda::StreamView stream) {
  return launch_exchange(team, call, {}, stream);
}

}  // namespace axon::kernels::ll128

namespace axon::kernels::zero_copy {

Status exchange_messages(const cuda::DeviceTeam& team, const ExchangeCall& call, const MessageLocations& zero_copy,
                         cuda::StreamView stream) {
  return ll128::launch_exchange(team, call, zero_copy, stream);
}

}  // namespace axon::kernels::zero_copy
