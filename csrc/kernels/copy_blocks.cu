#include "kernels/copy_blocks.hpp"

#include <algorithm>

#include "cuda/launch.hpp"
#include "kernels/ptx.cuh"

namespace axon::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpThreads = 32;
constexpr int kWarpsPerBlock = kThreads / kWarpThreads;
constexpr int kBlocksPerMultiprocessor = 3;
constexpr size_t kMostBlocks = 132 * kBlocksPerMultiprocessor;  // an H100 and H200 have 132
constexpr int kInFlight = 4;                                    // vectors per thread
// A warp has two units of a long list on average. Shorter ones only cost table entries.
constexpr uint64_t kUnitsWanted = 2 * kMostBlocks * kWarpsPerBlock;
constexpr uint64_t kSmallestUnit = uint64_t{kInFlight} * kWarpThreads * sizeof(Vector16);  // 2 KiB
constexpr uint64_t kLargestUnit = uint64_t{1} << 20;

__device__ __forceinline__ Vector16 load_as(const std::byte* address, Vector16) {
  return load_vector(address);
}
__device__ __forceinline__ void store_as(std::byte* address, Vector16 value) {
  store_vector(address, value);
}

// Volatile accesses pass L1, as those of vectors do: a peer may have changed the memory.
template <typename T>
__device__ __forceinline__ T load_as(const std::byte* address, T) {
  return *reinterpret_cast<const volatile T*>(address);
}
template <typename T>
__device__ __forceinline__ void store_as(std::byte* address, T value) {
  *reinterpret_cast<volatile T*>(address) = value;
}

// A warp copies whole elements. Both addresses are aligned to them.
template <typename T>
__device__ __forceinline__ void copy_elements(const std::byte* source, std::byte* target, uint64_t count, int lane) {
  for (uint64_t first = lane; first < count; first += uint64_t{kInFlight} * kWarpThreads) {
    T values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint64_t index = first + uint64_t{kWarpThreads} * k;
      if (index < count) values[k] = load_as(source + index * sizeof(T), T{});
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint64_t index = first + uint64_t{kWarpThreads} * k;
      if (index < count) store_as(target + index * sizeof(T), values[k]);
    }
  }
}

// Copies bytes up to the first aligned element, elements, and the bytes that are left.
template <typename T>
__device__ __forceinline__ void copy_aligned(const BlockCopy& unit, int lane) {
  const uint64_t before =
      min((sizeof(T) - reinterpret_cast<uintptr_t>(unit.target) % sizeof(T)) % sizeof(T), unit.num_bytes);
  const uint64_t count = (unit.num_bytes - before) / sizeof(T);
  const uint64_t after = before + count * sizeof(T);
  copy_elements<uint8_t>(unit.source, unit.target, before, lane);
  copy_elements<T>(unit.source + before, unit.target + before, count, lane);
  copy_elements<uint8_t>(unit.source + after, unit.target + after, unit.num_bytes - after, lane);
}

__device__ __forceinline__ void copy_unit(const BlockCopy& unit, int lane) {
  const uintptr_t distance = reinterpret_cast<uintptr_t>(unit.source) ^ reinterpret_cast<uintptr_t>(unit.target);
  if (distance % sizeof(Vector16) == 0) {
    copy_aligned<Vector16>(unit, lane);
  } else if (distance % sizeof(uint64_t) == 0) {
    copy_aligned<uint64_t>(unit, lane);
  } else if (distance % sizeof(uint32_t) == 0) {
    copy_aligned<uint32_t>(unit, lane);
  } else if (distance % sizeof(uint16_t) == 0) {
    copy_aligned<uint16_t>(unit, lane);
  } else {
    copy_aligned<uint8_t>(unit, lane);
  }
}

__device__ __forceinline__ BlockCopy load_unit(const BlockCopy* table, size_t index) {
  const auto* const words = reinterpret_cast<const uint64_t*>(table + index);
  return {.source = reinterpret_cast<const std::byte*>(load_relaxed(words)),
          .target = reinterpret_cast<std::byte*>(load_relaxed(words + 1)),
          .num_bytes = load_relaxed(words + 2)};
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    copy_blocks_kernel(const BlockCopy* table, size_t num_units) {
  await_stream();
  const int lane = threadIdx.x % kWarpThreads;
  const size_t step = size_t{gridDim.x} * kWarpsPerBlock;
  // Neighbouring units go to different multiprocessors.
  size_t index = size_t{threadIdx.x / kWarpThreads} * gridDim.x + blockIdx.x;
  if (index >= num_units) return;
  BlockCopy unit = load_unit(table, index);
  while (true) {
    const size_t next_index = index + step;
    const bool has_next = next_index < num_units;
    const BlockCopy next = has_next ? load_unit(table, next_index) : BlockCopy{};
    copy_unit(unit, lane);
    if (!has_next) return;
    unit = next;
    index = next_index;
  }
}

const void* copy_blocks_address() {
  return reinterpret_cast<const void*>(&copy_blocks_kernel);
}

uint64_t units_of(uint64_t num_bytes, uint64_t num_unit_bytes) {
  return (num_bytes + num_unit_bytes - 1) / num_unit_bytes;
}

}  // namespace

BlockUnits plan_units(std::span<const BlockCopy> blocks) noexcept {
  uint64_t num_bytes = 0;
  for (const BlockCopy& block : blocks) num_bytes += block.num_bytes;
  const uint64_t wanted = units_of(num_bytes / kUnitsWanted, kSmallestUnit) * kSmallestUnit;
  BlockUnits units{.num_bytes = std::clamp(wanted, kSmallestUnit, kLargestUnit), .count = 0};
  for (const BlockCopy& block : blocks) units.count += units_of(block.num_bytes, units.num_bytes);
  return units;
}

void fill_units(std::span<const BlockCopy> blocks, const BlockUnits& units, BlockCopy* table) noexcept {
  for (const BlockCopy& block : blocks) {
    for (uint64_t begin = 0; begin < block.num_bytes; begin += units.num_bytes) {
      *table++ = {.source = block.source + begin,
                  .target = block.target + begin,
                  .num_bytes = std::min(units.num_bytes, block.num_bytes - begin)};
    }
  }
}

Status copy_blocks(const BlockCopy* table, size_t num_units, cuda::StreamView stream) {
  if (num_units == 0) return Status();
  const size_t num_blocks = std::min((num_units + kWarpsPerBlock - 1) / kWarpsPerBlock, kMostBlocks);
  void* parameters[] = {&table, &num_units};
  return cuda::launch(copy_blocks_address(), {.num_blocks = static_cast<int>(num_blocks), .num_threads = kThreads},
                      parameters, stream);
}

Status load_copy_blocks() {
  return cuda::load(copy_blocks_address());
}

}  // namespace axon::kernels
