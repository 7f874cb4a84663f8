// Warp chunks: 8 lines that a warp stores with two instructions, with 960 bytes of payload and 8 flags.
//
// Thread t holds 16 bytes of a line in each half of the chunk. In the threads whose number ends a line (t % 8 = 7), 8
// of these bytes are the flag. User memory is nevertheless read and written in aligned vectors of 16 bytes. Therefore
// such a thread holds one vector, split over both halves, and any other thread holds two:
//
//   payload  0 … 511     vector t of thread t
//   payload 512 … 959    second vectors, of the 28 threads without flags
#pragma once

#include "kernels/ll/packet.cuh"

namespace axon::kernels::ll128 {

inline constexpr unsigned kWholeWarp = 0xFFFF'FFFF;
inline constexpr uint32_t kChunkVectors = cuda::kWarpChunkPayloadBytes / sizeof(Vector16);
inline constexpr uint32_t kHalfChunkBytes = cuda::kWarpChunkBytes / 2;

__device__ __forceinline__ uint32_t thread_of_warp() {
  return threadIdx.x % 32;
}

__device__ __forceinline__ bool holds_flag() {
  return threadIdx.x % 8 == 7;
}

// A thread's share of a chunk's payload. Threads with flags have no second vector.
struct Share {
  Vector16 first;
  Vector16 second;

  static __device__ __forceinline__ uint32_t first_vector() { return thread_of_warp(); }
  static __device__ __forceinline__ uint32_t second_vector() { return 32 + thread_of_warp() - thread_of_warp() / 8; }
};

// The warp's threads must be converged: all store their parts of a line in one instruction, and load them in one. A
// line that is stored in two parts may show its flag before its payload. A line that is loaded in two parts may show
// old payload beside the new flag. Hence __syncwarp before any run of these calls.
__device__ __forceinline__ void store_chunk(std::byte* slot, const Share& share, uint64_t flag) {
  const bool is_last = holds_flag();
  std::byte* lines = slot + 16 * thread_of_warp();
  store_vector(lines, {share.first.low, is_last ? flag : share.first.high});
  store_vector(lines + kHalfChunkBytes,
               {is_last ? share.first.high : share.second.low, is_last ? flag : share.second.high});
}

// Loads a chunk from the ring; it may have arrived only partly.
__device__ __forceinline__ Share load_chunk(const std::byte* slot) {
  const std::byte* lines = slot + 16 * thread_of_warp();
  const Vector16 first = load_vector(lines);
  return {first, load_vector(lines + kHalfChunkBytes)};
}

// Called by a whole warp. The vote follows every thread's loads. Chunks have flags first_flag, first_flag + 1, …
template <uint32_t kChunks>
__device__ __forceinline__ bool have_arrived(const Share (&loaded)[kChunks], uint32_t num_chunks, uint64_t first_flag) {
  bool are_here = true;
#pragma unroll
  for (uint32_t k = 0; k < kChunks; ++k) {
    const uint64_t flag = first_flag + k;
    are_here = are_here && (k >= num_chunks || (loaded[k].first.high == flag && loaded[k].second.high == flag));
  }
  return __all_sync(kWholeWarp, are_here || !holds_flag());
}

__device__ __forceinline__ void drop_flag(Share& loaded) {
  loaded.first.high = holds_flag() ? loaded.second.low : loaded.first.high;
}

}  // namespace axon::kernels::ll128
