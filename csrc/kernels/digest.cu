#include "kernels/digest.hpp"

#include <algorithm>

#include "base/digest.hpp"
#include "cuda/launch.hpp"
#include "kernels/ptx.cuh"

namespace axon::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWarpThreads = 32;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kInFlight = 4;  // vectors per thread

struct DigestCall {
  DigestPart parts[kMostDigestParts];
  int num_parts;
  uint64_t first_part;
  uint64_t* sums;
};

__device__ __forceinline__ uint64_t load_word(const std::byte* data, uint64_t num_bytes) {
  uint64_t word = 0;
  for (uint64_t i = 0; i < num_bytes; ++i) word |= static_cast<uint64_t>(data[i]) << (8 * i);
  return word;
}

__device__ uint64_t digest_of_vectors(const DigestPart& part, uint64_t first_index, uint64_t thread,
                                      uint64_t num_threads) {
  const uint64_t count = part.num_bytes / sizeof(Vector16);
  const auto* const vectors = reinterpret_cast<const ulonglong2*>(part.data);
  uint64_t sum = 0;
  for (uint64_t first = thread; first < count; first += kInFlight * num_threads) {
    ulonglong2 values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint64_t i = first + k * num_threads;
      if (i < count) values[k] = vectors[i];
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint64_t i = first + k * num_threads;
      if (i < count) {
        sum += digest_term(values[k].x, digest_key(first_index + 2 * i)) +
               digest_term(values[k].y, digest_key(first_index + 2 * i + 1));
      }
    }
  }
  return sum;
}

__device__ uint64_t digest_of_words(const DigestPart& part, uint64_t first_index, uint64_t first_word, uint64_t thread,
                                    uint64_t num_threads) {
  uint64_t sum = 0;
  for (uint64_t i = first_word + thread; i * sizeof(uint64_t) < part.num_bytes; i += num_threads) {
    const uint64_t begin = i * sizeof(uint64_t);
    sum += digest_term(load_word(part.data + begin, min(part.num_bytes - begin, uint64_t{sizeof(uint64_t)})),
                       digest_key(first_index + i));
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads) digest_kernel(DigestCall call) {
  await_stream();
  const uint64_t thread = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const uint64_t num_threads = uint64_t{gridDim.x} * kThreads;
  uint64_t sum = 0;
  for (int i = 0; i < call.num_parts; ++i) {
    const DigestPart& part = call.parts[i];
    const uint64_t first_index = (call.first_part + i) * kWordsOfAPart;
    const bool is_aligned = reinterpret_cast<uintptr_t>(part.data) % sizeof(Vector16) == 0;
    const uint64_t first_word = is_aligned ? part.num_bytes / sizeof(Vector16) * 2 : 0;
    if (is_aligned) sum += digest_of_vectors(part, first_index, thread, num_threads);
    sum += digest_of_words(part, first_index, first_word, thread, num_threads);
  }
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  __shared__ uint64_t sums[kWarps];
  if (threadIdx.x % kWarpThreads == 0) sums[threadIdx.x / kWarpThreads] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint64_t total = 0;
  for (const uint64_t each : sums) total += each;
  call.sums[blockIdx.x] = total;
}

const void* digest_address() {
  return reinterpret_cast<const void*>(&digest_kernel);
}

}  // namespace

Status digest(std::span<const DigestPart> parts, uint64_t first_part, uint64_t* sums, cuda::StreamView stream) {
  DigestCall call{.parts = {}, .num_parts = static_cast<int>(parts.size()), .first_part = first_part, .sums = sums};
  std::ranges::copy(parts, call.parts);
  void* parameters[] = {&call};
  return cuda::launch(digest_address(), {.num_blocks = kDigestBlocks, .num_threads = kThreads}, parameters, stream);
}

Status load_digest() {
  return cuda::load(digest_address());
}

}  // namespace axon::kernels
