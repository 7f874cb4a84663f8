// LL128 channels: rings of chunks with flow control. All functions are called by whole warps.
//
// A chunk's flag is its 64-bit number on the channel, from 1. It never repeats, so the ring needs no cleaning. The
// receiver writes the number of chunks that it has taken into the sender's credit flag. It does so only after their
// payload is in registers, so the sender may overwrite them. Both ends keep their counters in device memory, so later
// launches and graph replays continue from there. In each launch one warp owns a channel and advances its counters. The
// number of channels may change between launches, as long as both ends use the same number for a message.
//
// A warp has channel `number` of the links to or from a set of ranks. Thread r holds the state for rank r.
#pragma once

#include "kernels/ll128/warp_chunk.cuh"

namespace axon::kernels::ll128 {

// Chunks per batch of a warp, and batches in flight: enough to cover the memory latency, and few enough for the
// registers of 16 warps. A ring has room for two batches, so neither end waits for a batch that the other end has no
// room for.
inline constexpr uint32_t kBatchChunks = 2;
inline constexpr uint32_t kBatches = 2;
inline constexpr uint32_t kCreditChunks = 4;  // credit is sent once per this number of chunks, and at the end

// State that the waits of a kernel need.
struct WaitContext {
  const cuda::DeviceTeam& team;
  const cuda::TrafficLayout& traffic;
  const cuda::DeviceDescriptor& ours;
  uint32_t fault;  // at the start of this launch: read early, tested when all first loads are in flight

  __device__ __forceinline__ bool is_sound() const { return fault == 0; }

  // Index of a channel between `owner`'s slice and `peer`, in all tables of the traffic class.
  __device__ __forceinline__ uint32_t channel_index(int owner, int peer, uint32_t number) const {
    return static_cast<uint32_t>(peer < owner ? peer : peer - 1) * traffic.num_channels + number;
  }

  // Returns the ring into `receiver` from `sender`.
  __device__ __forceinline__ std::byte* ring(int receiver, int sender, uint32_t number) const {
    return team.slices[receiver] + traffic.rings +
           uint64_t{channel_index(receiver, sender, number)} * traffic.ring_chunks * cuda::kWarpChunkBytes;
  }

  __device__ __forceinline__ uint64_t* credit(int sender, int receiver, uint32_t number) const {
    return &reinterpret_cast<cuda::ChannelCredit*>(team.slices[sender] +
                                                   traffic.credits)[channel_index(sender, receiver, number)]
                .chunks_taken;
  }

  __device__ __forceinline__ cuda::ChannelCounters* counters(int peer, uint32_t number) const {
    return reinterpret_cast<cuda::ChannelCounters*>(team.slices[team.rank] + traffic.counters) +
           channel_index(team.rank, peer, number);
  }

  __device__ __forceinline__ uint32_t slot_offset(uint32_t chunk) const {
    return (chunk & (traffic.ring_chunks - 1)) * static_cast<uint32_t>(cuda::kWarpChunkBytes);
  }

  // Returns whether to continue waiting; the same for the whole warp.
  __device__ __forceinline__ bool may_wait(SpinWait& spin_wait, int peer, uint64_t chunk) const {
    const auto fault = __shfl_sync(kWholeWarp, static_cast<uint32_t>(spin_wait.after_poll([peer] { return peer; })), 0);
    if (fault == 0) return true;
    if (thread_of_warp() == 0) {
      report_fault(team, {.code = static_cast<cuda::FaultCode>(fault), .peer = peer, .sequence = chunk, .ours = ours});
    }
    return false;
  }
};

class SendChannels {
 public:
  // Opens channels to the ranks in the mask, all of which are peers.
  __device__ __forceinline__ SendChannels(const WaitContext& wait_context, uint32_t ranks, uint32_t number)
      : wait_context_(wait_context), number_(number) {
    if ((ranks >> thread_of_warp() & 1) == 0) return;
    const int peer = static_cast<int>(thread_of_warp());
    ring_ = wait_context.ring(peer, wait_context.team.rank, number);
    credit_ = wait_context.credit(wait_context.team.rank, peer, number);
    sent_ = load_relaxed(&wait_context.counters(peer, number)->chunks_sent);
    taken_ = load_relaxed(credit_);
  }

  // Waits until every ring has room for this many more chunks. Pairs with the credit that ReceiveChannels sends. Each
  // round tests the value of the last load and starts the next load, since usually there is no wait. Returns whether
  // there is room; false after a fault.
  __device__ __forceinline__ bool await_room(uint32_t num_chunks) {
    SpinWait spin_wait(wait_context_.team);
    for (;;) {
      bool has_room = true;
      if (is_used()) {
        has_room = sent_ + num_chunks - taken_ <= wait_context_.traffic.ring_chunks;
        taken_ = load_relaxed(credit_);
      }
      const unsigned lacking = __ballot_sync(kWholeWarp, !has_room);
      if (lacking == 0) return true;
      const int peer = __ffs(static_cast<int>(lacking)) - 1;
      if (!wait_context_.may_wait(spin_wait, peer, __shfl_sync(kWholeWarp, sent_, peer))) return false;
    }
  }

  // Sends the first `num_chunks` of the shares to one of the ranks. The ring must have room.
  template <uint32_t kChunks>
  __device__ __forceinline__ void send(int rank, uint32_t num_chunks, const Share (&shares)[kChunks]) {
    const uint64_t first = __shfl_sync(kWholeWarp, sent_, rank);
    auto* ring = reinterpret_cast<std::byte*>(__shfl_sync(kWholeWarp, reinterpret_cast<uint64_t>(ring_), rank));
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) {
      if (k < num_chunks) {
        store_chunk(ring + wait_context_.slot_offset(static_cast<uint32_t>(first) + k), shares[k], first + k + 1);
      }
    }
    if (thread_of_warp() == static_cast<uint32_t>(rank)) sent_ += num_chunks;
  }

  // Saves the counters for the next launch.
  __device__ __forceinline__ void finish() {
    if (is_used())
      store_relaxed(&wait_context_.counters(static_cast<int>(thread_of_warp()), number_)->chunks_sent, sent_);
  }

 private:
  __device__ __forceinline__ bool is_used() const { return credit_ != nullptr; }

  const WaitContext& wait_context_;
  uint32_t number_;
  std::byte* ring_ = nullptr;
  const uint64_t* credit_ = nullptr;
  uint64_t sent_ = 0;
  uint64_t taken_ = 0;
};

// Each batch is polled before it is awaited, in the same order.
class ReceiveChannels {
 public:
  __device__ __forceinline__ ReceiveChannels(const WaitContext& wait_context, uint32_t ranks, uint32_t number)
      : wait_context_(wait_context), number_(number) {
    if ((ranks >> thread_of_warp() & 1) == 0) return;
    const int peer = static_cast<int>(thread_of_warp());
    ring_ = wait_context.ring(wait_context.team.rank, peer, number);
    credit_ = wait_context.credit(peer, wait_context.team.rank, number);
    received_ = load_relaxed(&wait_context.counters(peer, number)->chunks_received);
    polled_ = static_cast<uint32_t>(received_);
  }

  // Starts loading the next chunks from one of the ranks, without waiting for the result.
  template <uint32_t kChunks>
  __device__ __forceinline__ void poll(int rank, uint32_t num_chunks, Share (&shares)[kChunks]) {
    if (num_chunks == 0) return;  // a warp ends only after its last load
    load_chunks(ring_of(rank), __shfl_sync(kWholeWarp, polled_, rank), shares);
    if (thread_of_warp() == static_cast<uint32_t>(rank)) polled_ += num_chunks;
  }

  // Waits until the chunks that were polled first are in the shares. Returns whether they arrived; false after a fault.
  template <uint32_t kChunks>
  __device__ __forceinline__ bool await(int rank, uint32_t num_chunks, Share (&shares)[kChunks]) {
    const uint64_t first = __shfl_sync(kWholeWarp, received_, rank);
    SpinWait spin_wait(wait_context_.team);
    while (!have_arrived(shares, num_chunks, first + 1)) {
      if (!wait_context_.may_wait(spin_wait, rank, first)) return false;
      load_chunks(ring_of(rank), static_cast<uint32_t>(first), shares);
    }
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) drop_flag(shares[k]);
    if (thread_of_warp() == static_cast<uint32_t>(rank)) {
      received_ += num_chunks;
      if (received_ % kCreditChunks < num_chunks) store_relaxed(credit_, received_);
    }
    return true;
  }

  __device__ __forceinline__ void finish() {
    if (credit_ == nullptr) return;
    store_relaxed(credit_, received_);
    store_relaxed(&wait_context_.counters(static_cast<int>(thread_of_warp()), number_)->chunks_received, received_);
  }

 private:
  __device__ __forceinline__ const std::byte* ring_of(int rank) const {
    return reinterpret_cast<const std::byte*>(__shfl_sync(kWholeWarp, reinterpret_cast<uint64_t>(ring_), rank));
  }

  // Always loads kChunks chunks and ignores superfluous ones: unconditional loads stay in flight together.
  template <uint32_t kChunks>
  __device__ __forceinline__ void load_chunks(const std::byte* ring, uint32_t first, Share (&shares)[kChunks]) const {
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) shares[k] = load_chunk(ring + wait_context_.slot_offset(first + k));
  }

  const WaitContext& wait_context_;
  uint32_t number_;
  const std::byte* ring_ = nullptr;
  uint64_t* credit_ = nullptr;
  uint64_t received_ = 0;
  uint32_t polled_ = 0;  // wraps around
};

}  // namespace axon::kernels::ll128
