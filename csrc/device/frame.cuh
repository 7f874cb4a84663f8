// Frames: 8 lines that a warp stores by two instructions, 960 bytes of payload and 8 flags.
//
// Thread t holds 16 bytes of a line in either half of the frame. In the threads whose number ends a line (t % 8 = 7), 8
// of them are the flag. So that user memory is read and written in aligned granules of 16 bytes nevertheless, such a
// thread holds one granule, split over both halves, and any other thread two:
//
//   payload  0 … 511     granule t of thread t
//   payload 512 … 959    second granules, of the 28 threads without flags
#pragma once

#include "device/packet.cuh"

namespace axon::device {

inline constexpr unsigned kWholeWarp = 0xFFFF'FFFF;
inline constexpr uint32_t kHalfFrameBytes = kFrameBytes / 2;

__device__ __forceinline__ uint32_t thread_of_warp() {
  return threadIdx.x % 32;
}

__device__ __forceinline__ bool holds_flag() {
  return threadIdx.x % 8 == 7;
}

// A thread's share of a frame's payload. Where the flag is, there is no second granule.
struct Share {
  Granule first;
  Granule second;

  static __device__ __forceinline__ uint32_t first_offset() { return 16 * thread_of_warp(); }
  static __device__ __forceinline__ uint32_t second_offset() {
    return kHalfFrameBytes + 16 * (thread_of_warp() - thread_of_warp() / 8);
  }
};

// By a whole warp, and by all its threads in one instruction: a line that leaves in two parts may show its flag before
// its payload, and one that is loaded in two, old payload beside the new flag. Hence __syncwarp right before.
__device__ __forceinline__ void store_frame(std::byte* slot, Share share, uint64_t flag) {
  if (holds_flag()) {
    share.second = {share.first.high, flag};
    share.first.high = flag;
  }
  std::byte* lines = slot + 16 * thread_of_warp();
  __syncwarp();
  store_line(lines, share.first);
  store_line(lines + kHalfFrameBytes, share.second);
}

// A frame as it lies in the ring, maybe not all there yet.
__device__ __forceinline__ Share load_frame(const std::byte* slot) {
  const std::byte* lines = slot + 16 * thread_of_warp();
  __syncwarp();
  const Granule first = load_line(lines);
  return {first, load_line(lines + kHalfFrameBytes)};
}

// By a whole warp; the vote comes after every thread's loads.
__device__ __forceinline__ bool has_arrived(const Share& loaded, uint64_t flag) {
  return __all_sync(kWholeWarp, !holds_flag() || (loaded.first.high == flag && loaded.second.high == flag));
}

__device__ __forceinline__ void drop_flag(Share& loaded) {
  if (holds_flag()) loaded.first.high = loaded.second.low;
}

}  // namespace axon::device
