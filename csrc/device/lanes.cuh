// Lanes: rings of frames with flow control. Whole warps call all of this.
//
// A frame's flag is its number on the lane, from 1, in 64 bits: it never repeats, so the ring needs no cleaning. The
// receiver writes how many frames it has taken into the sender's credit word: only after their payload is in registers,
// so the sender may overwrite them. Both ends count in device memory, so launches and replays of graphs go on from
// there. The one warp that has a lane in a launch advances its counters; the number of lanes may change from launch to
// launch, as long as both ends use the same for a message.
//
// A warp has lane `number` of the edges to or from a set of ranks; thread r keeps what belongs to rank r.
#pragma once

#include "device/frame.cuh"

namespace axon::device {

// Frames that a warp moves at a time, at most; a ring has room for two such batches, so that neither end can wait for a
// batch that the other has no room for.
inline constexpr uint32_t kMaxBatch = 4;

// What the waits of a kernel need to know.
struct Site {
  const DeviceTeam& team;
  const ChannelLayout& channel;
  const DeviceDescriptor& ours;

  // Of a lane between `owner`'s block and `peer`, in all tables of the channel.
  __device__ __forceinline__ uint32_t lane_index(int owner, int peer, uint32_t number) const {
    return static_cast<uint32_t>(peer < owner ? peer : peer - 1) * channel.num_lanes + number;
  }

  // The ring into `receiver` from `sender`.
  __device__ __forceinline__ std::byte* ring(int receiver, int sender, uint32_t number) const {
    return team.blocks[receiver] + channel.rings +
           uint64_t{lane_index(receiver, sender, number)} * channel.ring_frames * kFrameBytes;
  }

  __device__ __forceinline__ uint64_t* credit(int sender, int receiver, uint32_t number) const {
    return &reinterpret_cast<LaneCredit*>(team.blocks[sender] + channel.credits)[lane_index(sender, receiver, number)]
                .frames_taken;
  }

  __device__ __forceinline__ LaneCounters* counters(int peer, uint32_t number) const {
    return reinterpret_cast<LaneCounters*>(team.blocks[team.rank] + channel.counters) +
           lane_index(team.rank, peer, number);
  }

  __device__ __forceinline__ uint64_t slot_offset(uint64_t frame) const {
    return (frame & (channel.ring_frames - 1)) * kFrameBytes;
  }

  // True while there is no reason to give up; the same for the whole warp.
  __device__ __forceinline__ bool may_wait(Patience& patience, int peer, uint64_t frame) const {
    const auto fault = __shfl_sync(kWholeWarp, static_cast<uint32_t>(patience.after_poll()), 0);
    if (fault == 0) return true;
    if (thread_of_warp() == 0) {
      report_fault(team, {.code = static_cast<FaultCode>(fault), .peer = peer, .sequence = frame, .ours = ours});
    }
    return false;
  }
};

class OutLanes {
 public:
  // To the ranks in the mask, which are peers.
  __device__ __forceinline__ OutLanes(const Site& site, uint32_t ranks, uint32_t number)
      : site_(site), number_(number), is_used_(ranks >> thread_of_warp() & 1) {
    if (!is_used_) return;
    const int peer = static_cast<int>(thread_of_warp());
    sent_ = load_relaxed(&site_.counters(peer, number_)->frames_sent);
    taken_ = load_relaxed(site_.credit(site_.team.rank, peer, number_));
  }

  // Until every ring has room for so many more; pairs with the credit that InLanes gives. False: gave up.
  __device__ __forceinline__ bool await_room(uint32_t num_frames) {
    bool has_room = has_room_for(num_frames);
    if (__all_sync(kWholeWarp, has_room)) return true;
    Patience patience(site_.team);
    for (;;) {
      if (!has_room) taken_ = load_relaxed(site_.credit(site_.team.rank, static_cast<int>(thread_of_warp()), number_));
      has_room = has_room_for(num_frames);
      const unsigned lacking = __ballot_sync(kWholeWarp, !has_room);
      if (lacking == 0) return true;
      const int peer = __ffs(static_cast<int>(lacking)) - 1;
      if (!site_.may_wait(patience, peer, __shfl_sync(kWholeWarp, sent_, peer))) return false;
    }
  }

  // To one of the ranks: the first `num_frames` of the shares. There must be room.
  template <uint32_t kBatch>
  __device__ __forceinline__ void send(int rank, uint32_t num_frames, const Share (&shares)[kBatch]) {
    const uint64_t first = __shfl_sync(kWholeWarp, sent_, rank);
    std::byte* ring = site_.ring(rank, site_.team.rank, number_);
#pragma unroll
    for (uint32_t k = 0; k < kBatch; ++k) {
      if (k < num_frames) store_frame(ring + site_.slot_offset(first + k), shares[k], first + k + 1);
    }
    if (thread_of_warp() == static_cast<uint32_t>(rank)) sent_ += num_frames;
  }

  // For the next launch.
  __device__ __forceinline__ void finish() {
    if (is_used_) {
      store_relaxed(&site_.counters(static_cast<int>(thread_of_warp()), number_)->frames_sent, sent_);
    }
  }

 private:
  __device__ __forceinline__ bool has_room_for(uint32_t num_frames) const {
    return !is_used_ || sent_ + num_frames - taken_ <= site_.channel.ring_frames;
  }

  const Site& site_;
  uint32_t number_;
  bool is_used_;
  uint64_t sent_ = 0;
  uint64_t taken_ = 0;
};

class InLanes {
 public:
  __device__ __forceinline__ InLanes(const Site& site, uint32_t ranks, uint32_t number)
      : site_(site), number_(number), is_used_(ranks >> thread_of_warp() & 1) {
    if (is_used_) {
      received_ = load_relaxed(&site_.counters(static_cast<int>(thread_of_warp()), number_)->frames_received);
    }
  }

  // The next frames from one of the ranks, all polled together. False: gave up.
  template <uint32_t kBatch>
  __device__ __forceinline__ bool receive(int rank, uint32_t num_frames, Share (&shares)[kBatch]) {
    static_assert(kBatch <= kMaxBatch);
    const uint64_t first = __shfl_sync(kWholeWarp, received_, rank);
    const std::byte* ring = site_.ring(site_.team.rank, rank, number_);
    uint32_t arrived = ~0u << num_frames;
    Patience patience(site_.team);
    for (;;) {
#pragma unroll
      for (uint32_t k = 0; k < kBatch; ++k) {
        if ((arrived >> k & 1) == 0) shares[k] = load_frame(ring + site_.slot_offset(first + k));
      }
#pragma unroll
      for (uint32_t k = 0; k < kBatch; ++k) {
        if ((arrived >> k & 1) == 0 && has_arrived(shares[k], first + k + 1)) arrived |= 1u << k;
      }
      if (arrived == ~0u) break;
      if (!site_.may_wait(patience, rank, first)) return false;
    }
#pragma unroll
    for (uint32_t k = 0; k < kBatch; ++k) drop_flag(shares[k]);
    if (thread_of_warp() == static_cast<uint32_t>(rank)) {
      received_ += num_frames;
      store_relaxed(site_.credit(rank, site_.team.rank, number_), received_);
    }
    return true;
  }

  __device__ __forceinline__ void finish() {
    if (is_used_) {
      store_relaxed(&site_.counters(static_cast<int>(thread_of_warp()), number_)->frames_received, received_);
    }
  }

 private:
  const Site& site_;
  uint32_t number_;
  bool is_used_;
  uint64_t received_ = 0;
};

}  // namespace axon::device
