// How the ranks of a collective meet, whether their data travels in packets or in lines: each tells every peer what it
// is about to do, in the packet kept for that in the epoch's region, and compares what the peers tell. No rank enters
// the next epoch before it has heard of all.
#pragma once

#include "kernels/ll/packet.cuh"

namespace axon::kernels {

// Peers are numbered without the rank itself.
__device__ __forceinline__ int rank_of_peer(int own_rank, uint32_t peer) {
  return static_cast<int>(peer) + (static_cast<int>(peer) >= own_rank ? 1 : 0);
}

// By one warp, a thread a peer; context.ours may differ from peer to peer.
__device__ __forceinline__ void announce(const ll::EpochContext& context) {
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

// Whether the peer's word, if it has come, is context.ours; reports it if not.
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

// By one warp, a thread a peer: waits for the peer's word, which is to be context.ours.
__device__ __forceinline__ void verify(const ll::EpochContext& context) {
  const cuda::DeviceTeam& team = context.team;
  const int peer = threadIdx.x % 32;
  if (peer >= team.num_ranks || peer == team.rank) return;
  ll::Receipt<1> receipt{{context.descriptors(team.rank) + peer}, {}};
  const cuda::FaultCode fault = receipt.await(context, peer, 0);
  (void)agrees(context, peer, fault, receipt.payloads[0]);
}

// Waits for a packet that tells that a peer does not write into our tensors any more, though this rank may have failed.
// A peer whose process has ended does not either, nor, we have to suppose, one that does not come for so long: then
// false.
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

// A packet that nobody has written for 2³² epochs would match again. So once in kEpochsPerWipe, at two epochs running,
// the region that is idle in this epoch is stamped with this epoch, whose parity never matches there. Peers enter the
// next epoch, and write to that region, only after they have our descriptor: to be announced after the fence here and a
// barrier of the threads that wipe.
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
