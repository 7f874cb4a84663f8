// The barrier of a collective's ranks, for LL and LL128 kernels alike. Each rank sends every peer its descriptor, which
// says what the rank is about to do, and compares the descriptors that it receives. The epoch's region has one LL
// packet for each. No rank enters the next epoch before it has received the descriptors of all peers.
#pragma once

#include "kernels/ll/packet.cuh"

namespace axon::kernels {

// Peers are numbered without the rank itself.
__device__ __forceinline__ int rank_of_peer(int own_rank, uint32_t peer) {
  return static_cast<int>(peer) + (static_cast<int>(peer) >= own_rank ? 1 : 0);
}

// Called by one warp, with one thread per peer. context.ours may differ between peers.
__device__ __forceinline__ void send_descriptors(const ll::EpochContext& context) {
  const cuda::DeviceTeam& team = context.team;
  const int peer = threadIdx.x % 32;
  if (peer >= team.num_ranks || peer == team.rank) return;
  const ll::Payload payload = *reinterpret_cast<const ll::Payload*>(&context.ours);
  store_packet(context.descriptors(peer) + team.rank, packet_of(payload, context.epoch));
}

__device__ __forceinline__ bool is_same(const cuda::DeviceDescriptor& ours, ll::Payload theirs) {
  const ll::Payload payload = *reinterpret_cast<const ll::Payload*>(&ours);
  return theirs.low == payload.low && theirs.high == payload.high;
}

// Returns whether the peer's descriptor, if it has arrived, equals context.ours. Reports a fault otherwise.
__device__ __forceinline__ bool agrees(const ll::EpochContext& context, int peer, cuda::FaultCode fault,
                                       ll::Payload theirs) {
  if (fault == cuda::FaultCode::kNone && !is_same(context.ours, theirs)) fault = cuda::FaultCode::kMismatch;
  if (fault == cuda::FaultCode::kNone) return true;
  report_fault(context.team, {.code = fault,
                              .peer = peer,
                              .sequence = context.epoch,
                              .ours = context.ours,
                              .theirs = *reinterpret_cast<const cuda::DeviceDescriptor*>(&theirs)});
  return false;
}

// Called by one warp, with one thread per peer. Waits for the peer's descriptor, which must equal context.ours.
__device__ __forceinline__ void verify(const ll::EpochContext& context) {
  const cuda::DeviceTeam& team = context.team;
  const int peer = threadIdx.x % 32;
  if (peer >= team.num_ranks || peer == team.rank) return;
  ll::Receipt<1> receipt{{context.descriptors(team.rank) + peer}, {}};
  const cuda::FaultCode fault = receipt.await(context, peer, 0);
  (void)agrees(context, peer, fault, receipt.payloads[0]);
}

// Waits for a packet which says that a peer no longer writes into our tensors; this rank itself may have failed.
// Returns whether the packet arrived. False means that the peer's process has ended, so it does not write either. False
// is also returned after kLongestNs without the packet; we then have to assume the same.
__device__ __noinline__ inline bool guard(const ll::EpochContext& context, const cuda::LlPacket* packet, int peer) {
  constexpr uint64_t kLongestNs = 10'000'000'000;
  constexpr uint32_t kPollsPerLook = 4096;
  const uint64_t begin = global_timer();
  for (uint32_t num_polls = 1; !ll::is_of(load_packet(packet), context.epoch); ++num_polls) {
    if (num_polls % kPollsPerLook != 0) continue;
    const bool is_gone = (load_relaxed(&context.team.control->gone) >> peer & 1) != 0;
    if (is_gone || global_timer() - begin > kLongestNs) return false;
  }
  return true;
}

// A packet that has not been written for 2³² epochs would match again. Therefore, in two successive epochs of every
// kEpochsPerWipe, the region that is idle in the epoch is stamped with that epoch, whose parity never matches there.
// Peers enter the next epoch, and write to that region, only after they have our descriptor. So send it after the
// fence here and a barrier of the wiping threads.
inline constexpr uint32_t kEpochsPerWipe = 1u << 20;

__device__ __forceinline__ bool is_wipe_due(uint32_t epoch) {
  return epoch % kEpochsPerWipe <= 1;
}

__device__ __noinline__ inline void wipe_idle_region(const ll::EpochContext& context, uint32_t thread,
                                                     uint32_t num_threads) {
  const cuda::DeviceTeam& team = context.team;
  const ll::EpochContext idle(team, context.ours, context.epoch + 1);
  cuda::LlPacket* packets = idle.descriptors(team.rank);
  for (uint32_t index = thread; index < team.layout.region_packets; index += num_threads) {
    store_packet(packets + index, ll::packet_of({}, context.epoch));
  }
  __threadfence_system();
}

}  // namespace axon::kernels
