// How the ranks of a zero-copy kernel meet, vote and finish. In packets of the epoch's region, a rank sends each peer:
//
//   its descriptor                what it is about to do, as in every collective
//   two IpcLocations              the tensors that the peer reads and writes
//   its *vote*                    whether all ranks were heard, all agree, and it can access all that it needs
//   its *done flags*              one from each block: whether the block has done its part
//
// Each rank chooses its own grid size and sends it in its vote and done flags. The blocks of a rank divide the peer's
// done flags among themselves.
//
// Block 0 sends the first three; every block receives all votes. If all vote yes, each rank moves data on its own,
// since its inputs are complete since before the launch. If one votes no, all fall back and leave the epoch to the
// LL128 kernel that follows. So a rank may launch only the LL128 kernel, which votes no. This happens if the ranks do
// not all know how large an operation is.
//
// What earlier kernels wrote into a rank's tensors is visible in its GPU's memory when this kernel begins. The
// locations therefore need no fence before them. (The barriers at the start of PyTorch's kernels over symmetric memory
// have none either.)
//
// A rank that voted yes does not end before the peers' done flags have arrived, even if it has failed meanwhile. Until
// then peers may write into its tensors, whose memory may have another use afterwards. So a rank that has announced
// itself always sends its done flags.
//
// A rank that has received all locations may read before it has the votes; it discards what it read if they are not all
// yes. It may thus read memory that a failed rank has freed. That memory stays mapped for a while
// (ipc/registrations/imports.hpp), and no address is kept across a wait.
#pragma once

#include "kernels/barrier.cuh"
#include "kernels/ll128/warp_chunk.cuh"
#include "kernels/zero_copy/launch.hpp"

namespace axon::kernels::zero_copy {

// What a block must do.
enum class Action : uint32_t {
  kEnd,         // nothing
  kSignalDone,  // send done flags
  kFallBack,    // … after all ranks have agreed to fall back
  kGuard,       // … and wait for those of the peers, which may be moving data
  kMove,        // … after moving data
};

// The mappings of a peer's tensors on this GPU.
struct RemoteTensors {
  std::byte* readable;
  std::byte* writable;
  uint32_t num_blocks;  // of the peer's kernel; 0: not received
};

// The packets of a region in a zero-copy kernel. First are the descriptors; the rank's own slot there holds its own
// vote. Then follow two location packets and one vote per rank, one done flag per block and rank, and the progress per
// block and rank.
class ZeroCopyContext : public ll::EpochContext {
 public:
  using EpochContext::EpochContext;

  __device__ __forceinline__ cuda::LlPacket* locations(int owner, int from) const { return slots(owner) + 2 * from; }
  __device__ __forceinline__ cuda::LlPacket* vote(int owner, int from) const {
    return owner == from ? descriptors(owner) + owner : slots(owner) + 2 * team.num_ranks + from;
  }
  __device__ __forceinline__ cuda::LlPacket* done_flag(int owner, int from, uint32_t block) const {
    return slots(owner) + (3 + block) * team.num_ranks + from;
  }
  __device__ __forceinline__ cuda::LlPacket* progress(int owner, int from, uint32_t block) const {
    return done_flag(owner, from, cuda::kMaxBlocks + block);
  }
};

__device__ __forceinline__ cuda::DeviceDescriptor with_bytes(cuda::DeviceDescriptor descriptor, uint64_t num_bytes) {
  descriptor.num_bytes = num_bytes;
  return descriptor;
}

// Returns the entry of this GPU's table of a peer's registrations in which `location` would be.
__device__ __forceinline__ Vector16 load_entry(const cuda::DeviceTeam& team, int peer, cuda::IpcLocation location) {
  const cuda::RegistrationEntry* table = team.registrations[peer];
  static_assert(sizeof(Vector16) == sizeof(cuda::RegistrationEntry));
  if (table == nullptr) return {};
  return load_vector(reinterpret_cast<const std::byte*>(&table[location.registration % cuda::kRegistrationSlots]));
}

// Returns null if the location is not mapped, or not aligned to vectors.
__device__ __forceinline__ std::byte* address_of(cuda::IpcLocation location, Vector16 entry) {
  if (location.registration == 0 || entry.low != location.registration) return nullptr;
  std::byte* address = reinterpret_cast<std::byte*>(entry.high) + location.offset;
  return ll::is_aligned(address, kVectorBytes) ? address : nullptr;
}

__device__ __forceinline__ bool reads(const ZeroCopyHandshake& handshake, int rank) {
  return (handshake.reads >> rank & 1) != 0;
}
__device__ __forceinline__ bool writes(const ZeroCopyHandshake& handshake, int rank) {
  return (handshake.writes >> rank & 1) != 0;
}

// Returns whether everything needed of a rank is mapped.
__device__ __forceinline__ bool is_mapped(const ZeroCopyHandshake& handshake, int rank, const RemoteTensors& remote) {
  return (!reads(handshake, rank) || remote.readable != nullptr) &&
         (!writes(handshake, rank) || remote.writable != nullptr);
}

// Uses the peer's location packets; its tensors' content is older than these. Returns whether all that is needed is
// mapped.
__device__ __forceinline__ bool find_locations(const cuda::DeviceTeam& team, const ZeroCopyHandshake& handshake,
                                               int peer, const ll::Payload (&locations)[2], RemoteTensors& remote) {
  const auto readable = *reinterpret_cast<const cuda::IpcLocation*>(&locations[0]);
  const auto writable = *reinterpret_cast<const cuda::IpcLocation*>(&locations[1]);
  const Vector16 first = reads(handshake, peer) ? load_entry(team, peer, readable) : Vector16{};
  const Vector16 second = writes(handshake, peer) ? load_entry(team, peer, writable) : Vector16{};
  remote.readable = address_of(readable, first);
  remote.writable = address_of(writable, second);
  return is_mapped(handshake, peer, remote);
}

// What a peer has sent about itself so far. Its locations are valid only if its descriptor equals context.ours, since
// other ranks do not send any.
struct PeerDescriptor {
  bool has_arrived;  // the descriptor has arrived
  bool is_complete;  // the locations have arrived, too
  ll::Payload descriptor;
  ll::Payload locations[2];
};

__device__ __forceinline__ PeerDescriptor look_at(const ZeroCopyContext& context, int peer) {
  const cuda::LlPacket* locations = context.locations(context.team.rank, peer);
  const cuda::LlPacket descriptor = load_packet(context.descriptors(context.team.rank) + peer);
  const cuda::LlPacket first = load_packet(locations), second = load_acquire(locations + 1);
  const bool has_arrived = ll::is_of(descriptor, context.epoch);
  return {.has_arrived = has_arrived,
          .is_complete = has_arrived && ll::is_of(first, context.epoch) && ll::is_of(second, context.epoch),
          .descriptor = {descriptor.low, descriptor.high},
          .locations = {{first.low, first.high}, {second.low, second.high}}};
}

// Waits for a peer. Returns false, and reports a fault, if the peer does not arrive or disagrees.
__device__ __forceinline__ bool await_descriptor(const ZeroCopyContext& context, int peer, PeerDescriptor& received) {
  SpinWait spin_wait(context.team, 0);
  cuda::FaultCode fault = cuda::FaultCode::kNone;
  do {
    received = look_at(context, peer);
    if (received.is_complete || (received.has_arrived && !is_same(context.ours, received.descriptor))) break;
    fault = spin_wait.after_poll([peer] { return peer; });
  } while (fault == cuda::FaultCode::kNone);
  return agrees(context, peer, fault, received.descriptor);
}

// Called by the first warp of block 0, with one thread per peer. `remote` belongs to this thread. Addresses are used
// right after the lookup, so nothing is looked up before all peers have arrived.
__device__ __forceinline__ Vote decide_vote(const cuda::DeviceTeam& team, const ZeroCopyHandshake& handshake,
                                            uint32_t epoch, RemoteTensors& remote) {
  const int peer = static_cast<int>(ll128::thread_of_warp());
  const bool is_peer = peer < team.num_ranks && peer != team.rank;
  bool is_met = true;
  PeerDescriptor received{};
  if (is_peer) {
    const ZeroCopyLink& link = handshake.links[peer];
    const cuda::DeviceDescriptor to_peer = with_bytes(handshake.descriptor, link.bytes_to);
    const cuda::DeviceDescriptor from_peer = with_bytes(handshake.descriptor, link.bytes_from);
    const ZeroCopyContext outgoing(team, to_peer, epoch);
    send_descriptors(outgoing);
    cuda::LlPacket* locations = outgoing.locations(peer, team.rank);
    store_packet(locations, packet_of(*reinterpret_cast<const ll::Payload*>(&link.readable), epoch));
    store_packet(locations + 1, packet_of(*reinterpret_cast<const ll::Payload*>(&link.writable), epoch));
    is_met = await_descriptor(ZeroCopyContext(team, from_peer, epoch), peer, received);
  }
  if (!__all_sync(ll128::kWholeWarp, is_met)) return Vote::kFailed;
  const bool is_found = !is_peer || find_locations(team, handshake, peer, received.locations, remote);
  return __all_sync(ll128::kWholeWarp, is_found) && handshake.is_aligned_16 != 0 ? Vote::kYes : Vote::kNo;
}

// The same for the first warp of the other blocks, while block 0 decides its vote. Returns false if that vote was there
// first or is not yes.
__device__ __forceinline__ bool find_meanwhile(const ZeroCopyContext& context, const ZeroCopyHandshake& handshake,
                                               int peer, RemoteTensors& remote) {
  const cuda::DeviceTeam& team = context.team;
  const bool needs = !is_mapped(handshake, peer, RemoteTensors{});
  const cuda::DeviceDescriptor from_peer =
      with_bytes(handshake.descriptor, needs ? handshake.links[peer].bytes_from : 0);
  bool has_received = !needs, has_voted = false;
  PeerDescriptor received{};
  while (!has_received && !has_voted) {
    const cuda::LlPacket own = load_packet(context.vote(team.rank, team.rank));
    received = look_at(context, peer);
    has_voted = ll::is_of(own, context.epoch);
    const bool is_refused = has_voted && own.low != static_cast<uint32_t>(Vote::kYes);
    has_received = received.is_complete && is_same(from_peer, received.descriptor) && !is_refused;
  }
  return __all_sync(ll128::kWholeWarp, has_received) &&
         __all_sync(ll128::kWholeWarp, !needs || find_locations(team, handshake, peer, received.locations, remote));
}

// Called by the same warp. The vote always goes to the rank's own blocks, but to peers only if they may rely on it.
__device__ __forceinline__ void cast_vote(const ZeroCopyContext& context, Vote vote) {
  const cuda::DeviceTeam& team = context.team;
  const int rank = static_cast<int>(ll128::thread_of_warp());
  const bool is_clear = vote == Vote::kYes || vote == Vote::kNo;
  if (rank >= team.num_ranks || (rank != team.rank && !is_clear)) return;
  store_packet(context.vote(rank, team.rank),
               ll::packet_of({static_cast<uint32_t>(vote), kVoteTag | gridDim.x}, context.epoch));
}

struct PeerVote {
  Vote vote;
  uint32_t num_blocks;
};

// Called by one thread per rank. Block 0 always gives the rank's own vote; those of the peers may never arrive.
__device__ __forceinline__ PeerVote await_vote(const ZeroCopyContext& context, int rank) {
  const cuda::DeviceTeam& team = context.team;
  ll::Receipt<1> receipt{{context.vote(team.rank, rank)}, {}};
  cuda::FaultCode fault;
  do {
    fault = receipt.await(context, rank);
  } while (fault != cuda::FaultCode::kNone && rank == team.rank);
  const auto [vote, mark] = receipt.payloads[0];
  if (fault == cuda::FaultCode::kNone && (mark & ~kVoteBlocks) != kVoteTag) fault = cuda::FaultCode::kMismatch;
  if (fault == cuda::FaultCode::kNone) return {static_cast<Vote>(vote), mark & kVoteBlocks};
  report_fault(team, {.code = fault, .peer = rank, .sequence = context.epoch, .ours = context.ours});
  return {Vote::kUnheard, 0};
}

// Called by the first warp of a block, with one vote per thread; kYes for threads without a rank.
__device__ __forceinline__ Action choose_action(const ZeroCopyContext& context, Vote vote) {
  const bool all_agree = __all_sync(ll128::kWholeWarp, vote == Vote::kYes);
  const bool one_votes_no = __any_sync(ll128::kWholeWarp, vote == Vote::kNo);
  const auto own = static_cast<Vote>(__shfl_sync(ll128::kWholeWarp, static_cast<uint32_t>(vote), context.team.rank));
  if (own == Vote::kAbsent) return Action::kEnd;
  if (all_agree) return Action::kMove;
  if (one_votes_no) return Action::kFallBack;
  return own == Vote::kYes ? Action::kGuard : Action::kSignalDone;
}

// Called by one warp of an LL128 kernel that is launched alone, for peers that may have launched a zero-copy one.
__device__ __forceinline__ void vote_to_fall_back(const ZeroCopyContext& context) {
  const cuda::DeviceTeam& team = context.team;
  const int peer = static_cast<int>(ll128::thread_of_warp());
  if (peer >= team.num_ranks || peer == team.rank) return;
  const cuda::LlPacket nowhere = ll::packet_of({}, context.epoch);
  store_packet(context.locations(peer, team.rank), nowhere);
  store_packet(context.locations(peer, team.rank) + 1, nowhere);
  store_packet(context.vote(peer, team.rank),
               ll::packet_of({static_cast<uint32_t>(Vote::kNo), kVoteTag}, context.epoch));
}

// Called first, by all threads of a block. Block 0 tells the peers what this rank is about to do, and all blocks look
// up the peers' tensors. Returns whether all are found. They may then be read at once, though nothing is certain before
// agree().
__device__ __forceinline__ bool find_remote_tensors(const ZeroCopyContext& context, const ZeroCopyHandshake& handshake,
                                                    RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
  __shared__ bool is_all_found;
  const cuda::DeviceTeam& team = context.team;
  const uint32_t fault = load_relaxed(&team.state->fault);  // loaded in parallel with the epoch
  if (blockIdx.x == 0 && is_wipe_due(context.epoch)) {
    wipe_idle_region(context, threadIdx.x, blockDim.x);
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    const int rank = static_cast<int>(threadIdx.x);
    RemoteTensors remote{};
    bool is_found;
    if (blockIdx.x == 0) {
      const bool has_failed = __any_sync(ll128::kWholeWarp, fault != 0);
      const Vote vote = has_failed ? Vote::kAbsent : decide_vote(team, handshake, context.epoch, remote);
      cast_vote(context, vote);
      is_found = vote == Vote::kYes;
    } else {
      is_found = find_meanwhile(context, handshake, rank, remote) && handshake.is_aligned_16 != 0;
    }
    if (rank < team.num_ranks) remotes[rank] = remote;
    if (rank == 0) is_all_found = is_found;
  }
  __syncthreads();
  return is_all_found;
}

// Called by the first warp of a block if something is wrong. It is kept apart from the normal path, whose code is
// fetched as it runs.
__device__ __noinline__ inline Action resolve_vote(const ZeroCopyContext& context, const ZeroCopyHandshake& handshake,
                                                   Vote vote, RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
  const cuda::DeviceTeam& team = context.team;
  const int rank = static_cast<int>(ll128::thread_of_warp());
  const Action action = choose_action(context, vote);
  if (action != Action::kMove) return action;
  bool is_lost = rank < team.num_ranks && !is_mapped(handshake, rank, remotes[rank]);
  if (is_lost) {
    fence_device();  // what block 0 has found is visible by now
    is_lost = !find_locations(team, handshake, rank, look_at(context, rank).locations, remotes[rank]);
  }
  const unsigned lost = __ballot_sync(ll128::kWholeWarp, is_lost);
  if (lost == 0) return action;
  if (rank == 0)  // a process has ended meanwhile
    report_fault(team, {.code = cuda::FaultCode::kAborted,
                        .peer = __ffs(static_cast<int>(lost)) - 1,
                        .sequence = context.epoch,
                        .ours = context.ours});
  return Action::kGuard;
}

// Called by all threads of a block. Returns what to do; for kMove, `remotes` says where the peers' tensors are.
__device__ __forceinline__ Action agree(const ZeroCopyContext& context, const ZeroCopyHandshake& handshake,
                                        RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
  __shared__ Action action;
  if (threadIdx.x < 32) {
    const int rank = static_cast<int>(threadIdx.x);
    PeerVote peer_vote{Vote::kYes, 0};
    bool is_ready = true;
    if (rank < context.team.num_ranks) {
      peer_vote = await_vote(context, rank);
      remotes[rank].num_blocks = peer_vote.num_blocks;
      is_ready = peer_vote.vote == Vote::kYes && is_mapped(handshake, rank, remotes[rank]);
    }
    const bool is_well = __all_sync(ll128::kWholeWarp, is_ready);
    const Action chosen = is_well ? Action::kMove : resolve_vote(context, handshake, peer_vote.vote, remotes);
    if (rank == 0) action = chosen;
  }
  __syncthreads();
  return action;
}

// Called by one thread after a barrier of its block. What the block wrote in the peer's memory is visible before the
// peer receives the count.
__device__ __forceinline__ void tell_progress(const ZeroCopyContext& context, int peer, uint32_t count) {
  fence_system();
  store_packet(context.progress(peer, context.team.rank, blockIdx.x), ll::packet_of({count, 0}, context.epoch));
}

// Called by one thread for its whole block, after a barrier. Returns false, and reports a fault, if the peer's block
// does not get that far.
__device__ __forceinline__ bool await_progress(const ZeroCopyContext& context, int peer, uint32_t block,
                                               uint32_t count) {
  const cuda::DeviceTeam& team = context.team;
  const cuda::LlPacket* progress = context.progress(team.rank, peer, block);
  SpinWait spin_wait(team);
  cuda::FaultCode fault;
  do {
    const cuda::LlPacket packet = load_acquire(progress);
    if (ll::is_of(packet, context.epoch) && packet.low >= count) return true;
    fault = spin_wait.after_poll([peer] { return peer; });
  } while (fault == cuda::FaultCode::kNone);
  report_fault(team, {.code = fault, .peer = peer, .sequence = context.epoch, .ours = context.ours});
  return false;
}

// Waits like for data of a peer that never arrives.
__device__ __forceinline__ cuda::FaultCode await_fault(const cuda::DeviceTeam& team, int peer) {
  SpinWait spin_wait(team);
  for (;;) {
    if (const cuda::FaultCode fault = spin_wait.after_poll([peer] { return peer; }); fault != cuda::FaultCode::kNone)
      return fault;
  }
}

// Waits for a done flag; this rank may have failed. Returns whether it arrived.
__device__ __forceinline__ bool await_done_flag(const ZeroCopyContext& context, const cuda::LlPacket* done_flag,
                                                int peer) {
  const cuda::DeviceTeam& team = context.team;
  ll::Receipt<1> receipt{{done_flag}, {}};
  cuda::FaultCode fault = receipt.await(context, peer);
  const bool has_arrived = fault == cuda::FaultCode::kNone;
  if (has_arrived && receipt.payloads[0].low == kShareDone) return true;
  if (has_arrived) fault = await_fault(team, peer);
  report_fault(team, {.code = fault, .peer = peer, .sequence = context.epoch, .ours = context.ours});
  return has_arrived || guard(context, done_flag, peer);
}

// Waits for this block's share of the peer's done flags. A rank that has failed may not know their number; the first
// flag says it.
__device__ __noinline__ inline void await_done_flags(const ZeroCopyContext& context, int peer, uint32_t num_blocks) {
  if (num_blocks == 0) {
    const cuda::LlPacket* first = context.done_flag(context.team.rank, peer, 0);
    if (!guard(context, first, peer)) return;
    num_blocks = load_packet(first).high;
  }
  for (uint32_t block = blockIdx.x; block < num_blocks; block += gridDim.x) {
    if (!await_done_flag(context, context.done_flag(context.team.rank, peer, block), peer)) return;
  }
}

// Called by block 0. Writes what the LL128 kernel after this one tests.
__device__ __forceinline__ void record(cuda::TeamState& state, Action action) {
  if (action != Action::kMove && action != Action::kFallBack) return;
  store_relaxed(&state.must_fall_back, action == Action::kFallBack ? 1u : 0u);
  if (action == Action::kMove) store_relaxed(&state.num_zero_copy, load_relaxed(&state.num_zero_copy) + 1);
}

// Called last, by all threads of a block. Everything that they have stored in peers' tensors is complete there.
__device__ __forceinline__ void finish(const ZeroCopyContext& context, const ZeroCopyHandshake& handshake,
                                       Action action, const RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
  const cuda::DeviceTeam& team = context.team;
  __syncthreads();
  let_next_in();
  if (action == Action::kEnd || threadIdx.x >= 32) return;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < team.num_ranks && peer != team.rank) {
    if (handshake.writes != 0) fence_system();  // follows all writes of this block
    const uint32_t is_done = action == Action::kMove ? kShareDone : 0;
    store_packet(context.done_flag(peer, team.rank, blockIdx.x), ll::packet_of({is_done, gridDim.x}, context.epoch));
    if (action == Action::kMove || action == Action::kGuard) await_done_flags(context, peer, remotes[peer].num_blocks);
  }
  __syncwarp();
  if (blockIdx.x == 0 && threadIdx.x == 0) record(*team.state, action);
  if (action != Action::kFallBack) advance_epoch(team, context.epoch, blockIdx.x, gridDim.x);
}

}  // namespace axon::kernels::zero_copy
