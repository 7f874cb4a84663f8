// Spans: the unit of a message that a block of a zero-copy kernel moves at a time, by ordinary loads and stores of 16
// bytes. A multiprocessor writes ~50 GB/s either by these or by bulk copies, and these need no shared memory.
#pragma once

#include "kernels/ll128/message.cuh"
#include "kernels/zero_copy/launch.hpp"

namespace axon::kernels {

inline constexpr int kSpanThreads = 512;  // per block
inline constexpr int kSpanInFlight = 8;   // vectors per thread
inline constexpr uint64_t kSpanVectors = uint64_t{kSpanThreads} * kSpanInFlight;
inline constexpr uint64_t kSpanBytes = kSpanVectors * zero_copy::kVectorBytes;

__host__ __device__ __forceinline__ uint64_t count_spans(uint64_t num_bytes) {
  return (num_bytes + kSpanBytes - 1) / kSpanBytes;
}

// Reads each byte once and writes it wherever for_each_target(store) calls store(target); writes nothing beyond the
// message's end.
template <typename ForEachTarget>
__device__ __forceinline__ void copy_span_to_each(const std::byte* source, uint64_t num_bytes, uint64_t span,
                                                  ForEachTarget for_each_target) {
  const uint64_t num_vectors = num_bytes / zero_copy::kVectorBytes;
  const uint4* from = reinterpret_cast<const uint4*>(source);
  const uint64_t first = span * kSpanVectors + threadIdx.x;
  uint4 vectors[kSpanInFlight];
#pragma unroll
  for (int k = 0; k < kSpanInFlight; ++k) {
    if (first + k * kSpanThreads < num_vectors) vectors[k] = __ldcg(from + first + k * kSpanThreads);
  }
  for_each_target([&](std::byte* target) {
    uint4* to = reinterpret_cast<uint4*>(target);
#pragma unroll
    for (int k = 0; k < kSpanInFlight; ++k) {
      if (first + k * kSpanThreads < num_vectors) to[first + k * kSpanThreads] = vectors[k];
    }
  });
  const uint64_t num_whole = num_vectors * zero_copy::kVectorBytes;
  if (num_whole == num_bytes || span + 1 != count_spans(num_bytes) || threadIdx.x != 0) return;
  const Vector16 end = ll128::load_partial_vector(source + num_whole, num_bytes - num_whole);
  for_each_target(
      [&](std::byte* target) { ll128::store_partial_vector(target + num_whole, num_bytes - num_whole, 0, end); });
}

__device__ __forceinline__ void copy_span(const std::byte* source, std::byte* target, uint64_t num_bytes,
                                          uint64_t span) {
  copy_span_to_each(source, num_bytes, span, [target](auto store) { store(target); });
}

}  // namespace axon::kernels
