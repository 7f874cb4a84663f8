#include "kernels/host_partitions.hpp"

#include <algorithm>

#include "cuda/launch.hpp"
#include "kernels/device.cuh"
#include "kernels/ptx.cuh"

namespace axon::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // vectors per thread
// Half as many as reach the full speed of the bus (ADR 0049): they stay on the GPU while a receive is started.
constexpr uint32_t kMostBlocks = 8;
constexpr uint64_t kBytesPerBlock = uint64_t{32} << 10;  // of a partition
constexpr uint32_t kWords = kMostHostPartitions / 32;
// A look at the flags takes about 1.5 µs, over the bus.
constexpr uint32_t kLooksPerFaultCheck = 16;
constexpr uint32_t kLooksPerHostCheck = 256;

struct DrainArguments {
  HostPartitions partitions;
  DrainWords* words;
  uint32_t num_shares;  // of each partition, one per block
};

__global__ void host_start_kernel(PreparedTransfer* transfer) {
  await_stream();
  let_next_in();
  const uint32_t started = load_relaxed(transfer->started);
  if (started != load_relaxed(transfer->waited)) {
    detail::report(*transfer, detail::kMisuse, 0, detail::kNotWaited);
    return;
  }
  store_relaxed(transfer->started, started + 1 == 0 ? 1 : started + 1);
}

__global__ void close_kernel(PreparedTransfer* transfer, uint32_t* flag) {
  await_stream();
  store_release(flag, load_relaxed(transfer->started));
}

__global__ void await_drain_kernel(PreparedTransfer* transfer, DrainWords* words) {
  await_stream();
  detail::await(*transfer, &words->draining, load_relaxed(transfer->started), 0);
}

// The shares of a partition are copied by blocks that follow one another, from another one for each partition.
__device__ __forceinline__ uint32_t share_of_block(const DrainArguments& drain, uint32_t partition) {
  const uint32_t first = partition * drain.num_shares % gridDim.x;
  return (blockIdx.x + gridDim.x - first) % gridDim.x;
}

__device__ __forceinline__ bool has_share(const DrainArguments& drain, uint32_t partition) {
  return partition < drain.partitions.num_partitions && share_of_block(drain, partition) < drain.num_shares;
}

__device__ __forceinline__ void copy_byte(const PreparedTransfer& transfer, const DrainArguments& drain,
                                          uint64_t offset) {
  reinterpret_cast<std::byte*>(transfer.tensor)[offset] =
      const_cast<const volatile std::byte*>(drain.partitions.data)[offset];
}

// Copies this block's share of the partition: vectors in turn with the other blocks, and the first block also the bytes
// before and after all vectors.
__device__ __forceinline__ void copy_partition(const PreparedTransfer& transfer, const DrainArguments& drain,
                                               uint32_t partition) {
  const uint64_t begin = partition * drain.partitions.partition_bytes;
  const uint64_t num_bytes = drain.partitions.partition_bytes;
  const uint64_t misalignment = reinterpret_cast<uintptr_t>(transfer.tensor + begin) % sizeof(Vector16);
  const uint64_t num_before = min((sizeof(Vector16) - misalignment) % sizeof(Vector16), num_bytes);
  const uint64_t num_vectors = (num_bytes - num_before) / sizeof(Vector16);
  const std::byte* const source = drain.partitions.data + begin + num_before;
  auto* const target = reinterpret_cast<std::byte*>(transfer.tensor) + begin + num_before;
  const uint32_t share = share_of_block(drain, partition);
  const uint64_t stride = uint64_t{drain.num_shares} * kThreads;
  for (uint64_t first = uint64_t{share} * kThreads + threadIdx.x; first < num_vectors; first += kInFlight * stride) {
    Vector16 vectors[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * stride < num_vectors) vectors[k] = load_vector(source + (first + k * stride) * sizeof(Vector16));
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * stride < num_vectors) store_vector(target + (first + k * stride) * sizeof(Vector16), vectors[k]);
    }
  }
  if (share != 0) return;
  const uint64_t after = num_before + num_vectors * sizeof(Vector16);
  if (threadIdx.x < num_before) copy_byte(transfer, drain, begin + threadIdx.x);
  if (after + threadIdx.x < num_bytes) copy_byte(transfer, drain, begin + after + threadIdx.x);
}

// Called by one thread, after a look that has found nothing. Returns whether waits must end.
__device__ __forceinline__ bool must_end(const PreparedTransfer& transfer, uint32_t num_looks, uint64_t begin) {
  if (num_looks % kLooksPerFaultCheck != 0) return false;
  if (load_relaxed(transfer.group_fault) != 0) return true;
  if (num_looks % kLooksPerHostCheck != 0) return false;
  if (load_relaxed(transfer.abort) != 0) return !detail::report(transfer, detail::kAborted, 0);
  if (global_timer() - begin <= transfer.timeout_ns) return false;
  return !detail::report(transfer, detail::kTimeout, 0);
}

// The state of one block of the drain, in shared memory: a bit for each partition.
struct Taken {
  uint32_t found[kWords];  // by this look: not copied yet
  uint32_t copied[kWords];
};

// All threads of the block look at the flags, 32 of them in one access of a warp. Returns the number of partitions that
// have arrived, and that this block has not copied its share of.
__device__ __forceinline__ uint32_t look(const DrainArguments& drain, uint32_t count, Taken& taken) {
  const uint32_t num_partitions = drain.partitions.num_partitions;
  uint32_t num_found = 0;
  for (uint32_t first = 0; first < num_partitions; first += kThreads) {
    const uint32_t partition = first + threadIdx.x;
    bool is_new = has_share(drain, partition) && (taken.copied[partition / 32] >> partition % 32 & 1) == 0;
    is_new = is_new && detail::load_acquire(drain.partitions.flags + partition) == count;
    const uint32_t word = __ballot_sync(0xffffffffu, is_new);
    if (threadIdx.x % 32 == 0 && partition < num_partitions) taken.found[partition / 32] = word;
    num_found += __syncthreads_count(is_new);
  }
  return num_found;
}

// Copies what the last look has found, and says which partitions have arrived.
__device__ __forceinline__ void copy_found(const PreparedTransfer& transfer, const DrainArguments& drain,
                                           uint32_t count, Taken& taken) {
  const uint32_t num_words = (drain.partitions.num_partitions + 31) / 32;
  for (uint32_t index = 0; index < num_words; ++index) {
    for (uint32_t left = taken.found[index]; left != 0; left &= left - 1) {
      const uint32_t partition = index * 32 + __ffs(left) - 1;
      copy_partition(transfer, drain, partition);
      __syncthreads();
      if (threadIdx.x == 0 && detail::is_last_block(transfer, partition, drain.num_shares)) {
        store_release(transfer.done + partition, count);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x < num_words) taken.copied[threadIdx.x] |= taken.found[threadIdx.x];
  __syncthreads();
}

// Called by one thread of each block. Returns whether it is the last one; then the counter is 0 again.
__device__ __forceinline__ bool counts_last(uint32_t* counter) {
  __threadfence();
  return atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
}

// The next start cannot begin before this one has been waited for, so before all blocks have read the count.
__global__ void __launch_bounds__(kThreads)
    drain_kernel(PreparedTransfer* transfer, const __grid_constant__ DrainArguments drain) {
  await_stream();
  __shared__ Taken taken;
  const uint32_t count = load_relaxed(transfer->started);
  const uint64_t begin = global_timer();
  if (threadIdx.x < kWords) taken.copied[threadIdx.x] = 0;
  if (threadIdx.x == 0 && counts_last(&drain.words->num_resident)) store_release(&drain.words->draining, count);
  uint32_t num_left = 0;
  for (uint32_t first = 0; first < drain.partitions.num_partitions; first += kThreads) {
    num_left += __syncthreads_count(has_share(drain, first + threadIdx.x));
  }
  for (uint32_t num_looks = 1; num_left != 0; ++num_looks) {
    const uint32_t num_found = look(drain, count, taken);
    if (num_found != 0) {
      copy_found(*transfer, drain, count, taken);
      num_left -= num_found;
    } else if (__syncthreads_or(threadIdx.x == 0 && must_end(*transfer, num_looks, begin)) != 0) {
      return;
    }
  }
  if (threadIdx.x == 0 && counts_last(&drain.words->num_ended)) store_release(drain.partitions.turn, count);
}

template <typename Kernel>
const void* address_of_host(Kernel kernel) {
  return reinterpret_cast<const void*>(kernel);
}

template <typename Kernel, typename... Arguments>
Status launch_one(Kernel kernel, cuda::LaunchShape shape, cuda::StreamView stream, Arguments... arguments) {
  void* addresses[] = {&arguments...};
  return cuda::launch(address_of_host(kernel), shape, addresses, stream);
}

}  // namespace

DrainWords* drain_words_of(std::byte* record, uint32_t num_partitions) noexcept {
  return reinterpret_cast<DrainWords*>(record + TransferRecord::of(num_partitions, 0).drain);
}

Status launch_host_start(PreparedTransfer* transfer, cuda::StreamView stream) {
  return launch_one(&host_start_kernel, {.num_blocks = 1, .num_threads = 1}, stream, transfer);
}

Status launch_drain(PreparedTransfer* transfer, const HostPartitions& partitions, DrainWords* words,
                    cuda::StreamView stream) {
  const uint64_t wanted = (partitions.partition_bytes + kBytesPerBlock - 1) / kBytesPerBlock;
  const auto num_shares = static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, kMostBlocks));
  const uint64_t num_blocks = std::min<uint64_t>(uint64_t{partitions.num_partitions} * num_shares, kMostBlocks);
  const DrainArguments drain{.partitions = partitions, .words = words, .num_shares = num_shares};
  return launch_one(&drain_kernel, {.num_blocks = static_cast<int>(num_blocks), .num_threads = kThreads}, stream,
                    transfer, drain);
}

Status launch_await_drain(PreparedTransfer* transfer, DrainWords* words, cuda::StreamView stream) {
  return launch_one(&await_drain_kernel, {.num_blocks = 1, .num_threads = 1}, stream, transfer, words);
}

Status launch_close(PreparedTransfer* transfer, const HostPartitions& partitions, cuda::StreamView stream) {
  return launch_one(&close_kernel, {.num_blocks = 1, .num_threads = 1}, stream, transfer,
                    partitions.flags + partitions.num_partitions);
}

Status load_host_partition_kernels() {
  for (const void* kernel : {address_of_host(&host_start_kernel), address_of_host(&close_kernel),
                             address_of_host(&await_drain_kernel), address_of_host(&drain_kernel)}) {
    AXON_TRY(cuda::load(kernel));
  }
  return Status();
}

}  // namespace axon::kernels
