// The two ends of a point-to-point message that is written directly into the receiver's tensor, if possible.
//
// The receiver *offers* its tensor to the sender: the tensor's location, and which message it expects. One warp of the
// sender leads. It sends the header, as before every message, compares the offer with its own message, and looks up the
// location. It then *claims* the offer and tells its rank's other warps where to write. The last warp to finish tells
// the receiver. If the location is not mapped, or an address is not aligned to vectors, the leading warp sends
// kFallBack instead. Then the other warps of both ranks move the message over LL128. A receiver waits for both header
// and outcome, so a mismatch with whatever the sender has launched is always seen.
//
// One flag in the sender's slice decides whether an offer is valid. Each side exchanges it once: the sender to claim
// the offer, a receiver to withdraw it when it gives up. The second side finds what the first has left. A sender that
// comes second writes nothing. A receiver that comes second waits for the outcome even though it has failed, since its
// tensor is written to until then. A sender that has claimed an offer always writes everything and sends the outcome.
#pragma once

#include "kernels/ll128/point_to_point.cuh"
#include "kernels/zero_copy/handshake.cuh"
#include "kernels/zero_copy/point_to_point.hpp"

namespace axon::kernels::zero_copy {

// What the leading warp tells the other warps of its rank. Other values are an address, which is even.
inline constexpr uint64_t kByLl128 = 0;
inline constexpr uint64_t kNowhere = 1;  // the leading warp has given up

// In the slice of `owner`, with `peer`.
__device__ __forceinline__ cuda::Rendezvous& rendezvous(const cuda::DeviceTeam& team, int owner, int peer) {
  return reinterpret_cast<cuda::Rendezvous*>(team.slices[owner] + team.layout.rendezvous)[peer];
}

__device__ __forceinline__ uint32_t next_message(const cuda::MessageCount& count) {
  return load_relaxed(&count.number) + 1;
}

// Called by one thread of each of the `num_warps` that have called next_message(). Returns whether it is the last.
__device__ __forceinline__ bool leave_message(cuda::MessageCount& count, uint32_t number, uint32_t num_warps) {
  if (atomicAdd(&count.num_left, 1u) + 1 != num_warps) return false;
  store_relaxed(&count.num_left, 0u);
  store_relaxed(&count.num_taken, 0u);
  store_relaxed(&count.number, number);
  return true;
}

__device__ __forceinline__ void tell_outcome(const ll::EpochContext& context, int receiver, Outcome outcome) {
  store_packet(&rendezvous(context.team, receiver, context.team.rank).outcome,
               ll::packet_of({static_cast<uint32_t>(outcome), 0}, context.epoch));
}

// Returns whether the other side had decided before. Relaxed: the exchanges only decide whether stores follow at all. A
// receiver's exchange goes to the sender's GPU over NVLink, which LL128 lines need anyway.
__device__ __forceinline__ bool decide(cuda::Rendezvous& of_sender, uint32_t number, Claim ours, Claim theirs) {
  const auto word = [number](Claim claim) {
    return static_cast<unsigned long long>(number) << 32 | static_cast<uint32_t>(claim);
  };
  return atomicExch_system(reinterpret_cast<unsigned long long*>(&of_sender.claim), word(ours)) == word(theirs);
}

// Called by thread 0 of the sender's leading warp.
__device__ __noinline__ inline uint64_t choose_target(const ll::EpochContext& context,
                                                      const ll128::PeerMessages& messages, int peer) {
  const cuda::DeviceTeam& team = context.team;
  cuda::Rendezvous& own = rendezvous(team, team.rank, peer);
  ll::Receipt<3> offer{{&own.offer[0], &own.offer[1], &own.offer[2]}, {}};
  cuda::FaultCode fault = offer.await(context, peer);
  const auto& [location, theirs, tag] = offer.payloads;
  const bool fits = is_same(context.ours, theirs) && tag.low == messages.send_tag;
  if (fault == cuda::FaultCode::kNone && !fits) fault = cuda::FaultCode::kMismatch;
  if (fault == cuda::FaultCode::kNone) {
    (void)load_acquire(&own.offer[0]);  // orders it after what the receiver's kernels did to its tensor
    fence_device();                     // … also for this rank's other warps
    const auto to = *reinterpret_cast<const cuda::IpcLocation*>(&location);
    std::byte* target =
        ll::is_aligned(messages.send, kVectorBytes) ? address_of(to, load_entry(team, peer, to)) : nullptr;
    if (target == nullptr) return kByLl128;
    const bool is_withdrawn = decide(own, context.epoch, Claim::kClaimed, Claim::kWithdrawn);
    if (!is_withdrawn) return reinterpret_cast<uint64_t>(target);
    fault = await_fault(team, peer);
  }
  report_fault(team, {.code = fault,
                      .peer = peer,
                      .sequence = context.epoch,
                      .ours = context.ours,
                      .theirs = *reinterpret_cast<const cuda::DeviceDescriptor*>(&theirs),
                      .our_tag = messages.send_tag,
                      .their_tag = tag.low});
  return kNowhere;
}

// Called by each warp of the sender, at its end unless it sends over LL128.
__device__ __forceinline__ void finish_sending(const ll::EpochContext& context, int peer, uint64_t target,
                                               uint32_t num_warps) {
  const cuda::DeviceTeam& team = context.team;
  const bool is_written = target != kByLl128 && target != kNowhere;
  if (is_written) fence_system();  // follows what this thread has written
  __syncwarp();
  if (ll128::thread_of_warp() != 0) return;
  const bool is_last = leave_message(rendezvous(team, team.rank, peer).sent, context.epoch, num_warps);
  if (!is_last || !is_written) return;
  fence_system();  // … and what the other warps have written
  tell_outcome(context, peer, Outcome::kWritten);
  atomicAdd(&team.state->num_zero_copy_messages, 1u);
}

__device__ __forceinline__ void lead_sending(const ll128::WaitContext& wait_context,
                                             const ll128::PeerMessages& messages, int peer, uint32_t num_warps) {
  cuda::Rendezvous& own = rendezvous(wait_context.team, wait_context.team.rank, peer);
  const ll::EpochContext context(wait_context.team, wait_context.ours, next_message(own.sent));
  const bool is_sent = send_header(wait_context, peer, messages.send_tag);
  uint64_t target = kNowhere;
  if (ll128::thread_of_warp() == 0) {
    if (is_sent) target = choose_target(context, messages, peer);
    store_packet(&own.target, packet_of(*reinterpret_cast<const ll::Payload*>(&target), context.epoch));
    if (target == kByLl128) tell_outcome(context, peer, Outcome::kFallBack);
  }
  finish_sending(context, peer, __shfl_sync(ll128::kWholeWarp, target, 0), num_warps);
}

// Tells a warp whether to write the last bytes of the message, which do not fill a vector.
enum class Rest : uint8_t { kWritten, kLeft };

// One warp's part of a message that begins at a vector boundary. Warps are unequally fast, so each takes its next chunk
// when it has written the last one.
__device__ __forceinline__ void write_part(const ll128::PeerMessages& messages, std::byte* target, Rest rest,
                                           cuda::MessageCount& count) {
  constexpr uint32_t kInFlight = 16;  // vectors per thread
  constexpr uint64_t kChunk = uint64_t{32} * kInFlight;
  const uint64_t num_vectors = messages.send_bytes / kVectorBytes;
  const auto* from = reinterpret_cast<const uint4*>(messages.send);
  auto* to = reinterpret_cast<uint4*>(target);
  uint32_t following = 0;
  if (ll128::thread_of_warp() == 0) following = atomicAdd(&count.num_taken, 1u);
  for (;;) {
    const uint64_t chunk = __shfl_sync(ll128::kWholeWarp, following, 0);
    if (chunk * kChunk >= num_vectors) break;
    if (ll128::thread_of_warp() == 0) following = atomicAdd(&count.num_taken, 1u);  // arrives during the chunk
    const uint64_t first = chunk * kChunk + ll128::thread_of_warp();
    uint4 vectors[kInFlight];
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      if (first + 32 * k < num_vectors) vectors[k] = __ldcg(from + first + 32 * k);
    }
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      if (first + 32 * k < num_vectors) to[first + 32 * k] = vectors[k];
    }
  }
  const uint64_t num_whole = num_vectors * kVectorBytes, num_rest = messages.send_bytes - num_whole;
  if (num_rest == 0 || rest == Rest::kLeft || ll128::thread_of_warp() != 0) return;
  ll128::store_partial_vector(target + num_whole, num_rest, 0,
                              ll128::load_partial_vector(messages.send + num_whole, num_rest));
}

// Called by the sender's other warps, of which channel 1 writes the rest. Returns whether the message must go over
// LL128; then none of it has been written.
__device__ __forceinline__ bool sends_by_ll128(const ll128::WaitContext& wait_context,
                                               const ll128::PeerMessages& messages, int peer, const ll128::Job& job) {
  cuda::Rendezvous& own = rendezvous(wait_context.team, wait_context.team.rank, peer);
  const ll::EpochContext context(wait_context.team, wait_context.ours, next_message(own.sent));
  uint64_t target = kNowhere;
  if (ll128::thread_of_warp() == 0) {
    ll::Receipt<1> told{{&own.target}, {}};
    while (told.await(context, wait_context.team.rank) != cuda::FaultCode::kNone)
      continue;  // the leading warp always sets the target
    target = *reinterpret_cast<const uint64_t*>(&told.payloads[0]);
    (void)load_acquire(&own.target);  // for the same reason as in the leading warp
  }
  target = __shfl_sync(ll128::kWholeWarp, target, 0);
  __syncwarp();
  if (target != kByLl128 && target != kNowhere) {
    write_part(messages, reinterpret_cast<std::byte*>(target), job.channel == 1 ? Rest::kWritten : Rest::kLeft,
               own.sent);
  }
  finish_sending(context, peer, target, job.num_channels);
  return target == kByLl128;
}

// Called by one thread. Writes what the sender's leading warp waits for.
__device__ __forceinline__ void offer(const ll::EpochContext& context, int sender, cuda::IpcLocation location,
                                      uint32_t tag) {
  cuda::LlPacket* packets = rendezvous(context.team, sender, context.team.rank).offer;
  store_packet(packets, packet_of(*reinterpret_cast<const ll::Payload*>(&location), context.epoch));
  store_packet(packets + 1, ll::packet_of(*reinterpret_cast<const ll::Payload*>(&context.ours), context.epoch));
  store_packet(packets + 2, ll::packet_of({tag, 0}, context.epoch));
}

// Called by one thread. Returns Outcome{} if the outcome did not arrive; this rank then has a fault.
__device__ __noinline__ inline Outcome await_outcome(const ll::EpochContext& context, int sender, uint32_t tag) {
  const cuda::DeviceTeam& team = context.team;
  ll::Receipt<1> outcome{{&rendezvous(team, team.rank, sender).outcome}, {}};
  const cuda::FaultCode fault = outcome.await(context, sender);
  if (fault == cuda::FaultCode::kNone) return static_cast<Outcome>(outcome.payloads[0].low);
  report_fault(team, {.code = fault, .peer = sender, .sequence = context.epoch, .ours = context.ours, .our_tag = tag});
  return Outcome{};
}

__device__ __forceinline__ void lead_receiving(const ll128::WaitContext& wait_context,
                                               const ll128::PeerMessages& messages, cuda::IpcLocation location,
                                               int peer, uint32_t num_warps) {
  const cuda::DeviceTeam& team = wait_context.team;
  cuda::Rendezvous& own = rendezvous(team, team.rank, peer);
  const ll::EpochContext context(team, wait_context.ours, next_message(own.received));
  const bool offers = wait_context.is_sound() && ll128::thread_of_warp() == 0;
  if (offers) offer(context, peer, location, messages.receive_tag);
  __syncwarp();
  const bool is_met = receive_header(wait_context, peer, messages.receive_tag);
  if (offers) {
    const Outcome outcome = is_met ? await_outcome(context, peer, messages.receive_tag) : Outcome{};
    if (outcome == Outcome::kWritten) atomicAdd(&team.state->num_zero_copy_messages, 1u);
    if (outcome == Outcome{} &&
        decide(rendezvous(team, peer, team.rank), context.epoch, Claim::kWithdrawn, Claim::kClaimed)) {
      (void)guard(context, &rendezvous(context.team, context.team.rank, peer).outcome, peer);
    }
    (void)load_acquire(&own.outcome);  // what the sender has written is visible
  }
  if (ll128::thread_of_warp() == 0) (void)leave_message(own.received, context.epoch, num_warps);
}

// Called by the receiver's other warps. Returns whether the message comes over LL128.
__device__ __forceinline__ bool receives_by_ll128(const ll128::WaitContext& wait_context,
                                                  const ll128::PeerMessages& messages, int peer, uint32_t num_warps) {
  cuda::Rendezvous& own = rendezvous(wait_context.team, wait_context.team.rank, peer);
  const ll::EpochContext context(wait_context.team, wait_context.ours, next_message(own.received));
  Outcome outcome{};
  if (ll128::thread_of_warp() == 0) {
    if (wait_context.is_sound()) outcome = await_outcome(context, peer, messages.receive_tag);
    (void)leave_message(own.received, context.epoch, num_warps);
  }
  return __shfl_sync(ll128::kWholeWarp, static_cast<uint32_t>(outcome), 0) == static_cast<uint32_t>(Outcome::kFallBack);
}

}  // namespace axon::kernels::zero_copy
