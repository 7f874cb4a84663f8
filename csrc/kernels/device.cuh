// Partitioned transfers, driven by kernels. This header needs CUDA 12 or newer (nvcc or NVRTC), C++17, and nothing
// else of axon.
//
// A request that torch_axon.prepare() has made for a CUDA tensor has two ends, one per rank. `request.device_handle` is
// the address of its rank's end, which kernels take as an axon::PreparedTransfer*:
//
//   __global__ void produce(axon::PreparedTransfer* request, float* tensor) {
//     // … this block writes partition blockIdx.x of the tensor …
//     axon::pready(request, blockIdx.x);
//   }
//   __global__ void consume(axon::PreparedTransfer* request, const float* tensor) {
//     if (!axon::wait(request, blockIdx.x)) return;
//     // … this block reads partition blockIdx.x of the tensor …
//   }
//
// The host still calls request.start() before these kernels and request.wait() after them, on streams that order them.
// All three may be captured into a CUDA graph and replayed.
//
// Functions marked "block" are called by all threads of a thread block, with the same arguments. Blocks may take
// partitions in any order, and one block several of them. The functions return false, and do nothing more, once a wait
// has failed: the peer is missing or gone, the group was aborted, or the request was misused. The group's next call on
// the host then raises the reason. No wait lasts longer than the request's timeout.
//
// Beware of grids that do not fit on the GPU. A block that waits keeps its place. If all resident blocks wait for
// partitions that depend on blocks without a place, none of them goes on until the timeout. A kernel that only calls
// pready() waits for nothing but the peer's start().
#pragma once

#ifdef __CUDACC_RTC__  // NVRTC has no headers of the standard library
namespace axon {
using int32_t = int;
using uint32_t = unsigned;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
}  // namespace axon
#else
#include <cstdint>
#endif

namespace axon {

// The first fault of a group, reported to the host. Same layout as cuda::FaultReport (cuda/device_types.hpp).
struct TransferFault {
  uint32_t code;
  int32_t peer;
  uint64_t partition;
  uint64_t ours;
  uint64_t theirs;
  uint32_t tag;
  uint32_t misuse;
};

// One end of a partitioned transfer, in device memory. Kernels pass its address on, and read none of its members. A
// request counts its starts, so that a replayed graph needs no reset. Flags hold the count of the start that they
// belong to.
struct PreparedTransfer {
  uint64_t is_sender;
  uint64_t num_partitions;
  uint64_t partition_bytes;
  unsigned char* tensor;
  unsigned char* target;   // sender: the receiver's tensor, or the host memory from which it is sent
  uint32_t* arrived;       // [partition] in the receiver's memory, or the host's: written by the sender
  uint32_t* done;          // [partition] in this rank's memory; those of the receiver are `arrived`
  uint32_t* num_finished;  // [partition] sender: blocks of this rank that have copied their part
  uint32_t* credit;        // in the sender's memory: the receiver's starts; in the host's: those that may be written
  uint32_t* started;       // this rank's starts
  uint32_t* waited;        // those that it has waited for
  uint32_t* group_fault;   // ends all waits of this rank's group
  const uint32_t* abort;   // from the host, as the next one
  const uint32_t* gone;    // one bit per rank of the host
  TransferFault* report;   // to the host
  uint64_t call;           // a cuda::DeviceDescriptor, for reports
  uint64_t timeout_ns;
  unsigned char* slots;  // in the receiver's memory: where small tensors arrive (kernels/prepared.cu)
  int32_t peer;          // its number among the group's ranks of this host
  uint32_t tag;
};

namespace detail {

constexpr uint32_t kTimeout = 1, kAborted = 2, kGone = 4, kMisuse = 5;  // of cuda::FaultCode
enum Misuse : uint32_t { kNotStarted = 1, kNotWaited = 2, kNoPartition = 3, kReadyTwice = 4, kNoSender = 5 };

__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ __forceinline__ uint32_t thread_of_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ __forceinline__ uint32_t threads_of_block() {
  return blockDim.x * blockDim.y * blockDim.z;
}

// Ends all waits of the group's kernels on this rank. The first report is kept. Returns false.
__device__ __noinline__ inline bool report(const PreparedTransfer& transfer, uint32_t code, uint64_t partition,
                                           uint32_t misuse = 0) {
  if (atomicCAS(transfer.group_fault, 0u, code) != 0) return false;
  TransferFault& fault = *transfer.report;
  fault.peer = transfer.peer;
  fault.partition = partition;
  fault.ours = transfer.call;
  fault.theirs = 0;
  fault.tag = transfer.tag;
  fault.misuse = misuse;
  store_release(&fault.code, code);
  return false;
}

// Called by one thread. Polls until is_there() returns true.
template <typename IsThere>
__device__ __forceinline__ bool await(const PreparedTransfer& transfer, uint64_t partition, IsThere is_there) {
  constexpr uint32_t kPollsPerFaultCheck = 64, kPollsPerHostCheck = 4096;
  uint64_t begin = 0;
  bool was_gone = false;
  for (uint32_t num_polls = 1; !is_there(); ++num_polls) {
    if (num_polls % kPollsPerFaultCheck != 0) continue;
    if (load_relaxed(transfer.group_fault) != 0) return false;
    if (num_polls % kPollsPerHostCheck != 0) continue;
    if (load_relaxed(transfer.abort) != 0) return report(transfer, kAborted, partition);
    const bool is_gone = (load_relaxed(transfer.gone) >> transfer.peer & 1) != 0;
    if (is_gone && was_gone) return report(transfer, kGone, partition);  // what it had written has arrived
    was_gone = is_gone;
    const uint64_t now = nanoseconds();
    if (begin == 0) begin = now;
    if (now - begin > transfer.timeout_ns) return report(transfer, kTimeout, partition);
  }
  return true;
}

// Waits until the flag has reached this count, and then sees what its writer had written before.
__device__ __forceinline__ bool await(const PreparedTransfer& transfer, const uint32_t* flag, uint32_t count,
                                      uint64_t partition) {
  return await(transfer, partition, [=] { return static_cast<int32_t>(load_acquire(flag) - count) >= 0; });
}

// Called by one thread. Waits until the partition has arrived or, at the sender, been sent.
__device__ __forceinline__ bool await_partition(const PreparedTransfer& transfer, uint64_t partition) {
  if (partition >= transfer.num_partitions) return report(transfer, kMisuse, partition, kNoPartition);
  const uint32_t count = load_relaxed(transfer.started), waited = load_relaxed(transfer.waited);
  const bool is_done = load_acquire(transfer.done + partition) == count;
  if (count == waited) return report(transfer, kMisuse, partition, kNotStarted);
  return is_done || await(transfer, transfer.done + partition, count, partition);
}

// Called by one thread of each block that writes the partition. Waits until the receiver has started, and returns the
// count of this start. All loads are under way before the first is used.
__device__ __forceinline__ bool begin_partition(const PreparedTransfer& transfer, uint64_t partition, uint32_t& count) {
  if (transfer.is_sender == 0) return report(transfer, kMisuse, partition, kNoSender);
  if (partition >= transfer.num_partitions) return report(transfer, kMisuse, partition, kNoPartition);
  count = load_relaxed(transfer.started);
  const uint32_t waited = load_relaxed(transfer.waited), done = load_relaxed(transfer.done + partition);
  const bool has_credit = static_cast<int32_t>(load_acquire(transfer.credit) - count) >= 0;
  if (count == waited) return report(transfer, kMisuse, partition, kNotStarted);
  if (count == done) return report(transfer, kMisuse, partition, kReadyTwice);
  return has_credit || await(transfer, transfer.credit, count, partition);
}

// Called by one thread of each block that takes part, after a barrier that follows its writes.
__device__ __forceinline__ bool is_last_block(const PreparedTransfer& transfer, uint64_t partition,
                                              uint32_t num_blocks) {
  if (num_blocks == 1) return true;
  __threadfence_system();
  if (atomicAdd(transfer.num_finished + partition, 1u) + 1 != num_blocks) return false;
  __threadfence_system();  // what the other blocks have written comes before what this one releases
  store_relaxed(transfer.num_finished + partition, 0);
  return true;
}

// Called by one thread, after a barrier that follows all writes of the partition.
__device__ __forceinline__ void publish_partition(const PreparedTransfer& transfer, uint64_t partition,
                                                  uint32_t count) {
  store_release(transfer.arrived + partition, count);
  store_relaxed(transfer.done + partition, count);
}

template <typename T>
__device__ __forceinline__ void copy_elements(const unsigned char* source, unsigned char* target, uint64_t num_bytes,
                                              uint64_t thread, uint64_t num_threads) {
  constexpr int kInFlight = 8;
  const auto* from = reinterpret_cast<const T*>(source);
  auto* to = reinterpret_cast<T*>(target);
  const uint64_t count = num_bytes / sizeof(T);
  for (uint64_t first = thread; first < count; first += kInFlight * num_threads) {
    T values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * num_threads < count) values[k] = __ldcg(from + first + k * num_threads);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k * num_threads < count) to[first + k * num_threads] = values[k];
    }
  }
}

// Copies this thread's share of a range.
__device__ __forceinline__ void copy_share(const unsigned char* source, unsigned char* target, uint64_t num_bytes,
                                           uint64_t thread, uint64_t num_threads) {
  const uint64_t alignment = reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target);
  uint64_t num_copied = 0;
  if (alignment % sizeof(uint4) == 0) {
    copy_elements<uint4>(source, target, num_bytes, thread, num_threads);
    num_copied = num_bytes / sizeof(uint4) * sizeof(uint4);
  } else if (alignment % sizeof(uint32_t) == 0) {
    copy_elements<uint32_t>(source, target, num_bytes, thread, num_threads);
    num_copied = num_bytes / sizeof(uint32_t) * sizeof(uint32_t);
  }
  copy_elements<unsigned char>(source + num_copied, target + num_copied, num_bytes - num_copied, thread, num_threads);
}

}  // namespace detail

// Block; sender. Sends the partition once: copies it into the receiver's tensor and says so. What any thread of the
// block has written to it before is sent.
__device__ __forceinline__ bool pready(PreparedTransfer* transfer, uint64_t partition) {
  const bool leads = detail::thread_of_block() == 0;
  uint32_t count = 0;
  if (__syncthreads_and(!leads || detail::begin_partition(*transfer, partition, count)) == 0) return false;
  const uint64_t offset = partition * transfer->partition_bytes;
  detail::copy_share(transfer->tensor + offset, transfer->target + offset, transfer->partition_bytes,
                     detail::thread_of_block(), detail::threads_of_block());
  __syncthreads();
  if (leads) detail::publish_partition(*transfer, partition, count);
  return true;
}

// Block; sender. The two together replace pready() in a kernel that writes its results directly into the receiver's
// tensor, and not into its own. begin() returns where the partition begins there, once the receiver has started; null
// if that failed. Between hosts, that is in the memory from which the partition is sent. publish() says that the block
// has written all of it. If several blocks write one partition, each calls both, with their number in publish(); the
// last one sends it.
__device__ __forceinline__ void* begin(PreparedTransfer* transfer, uint64_t partition) {
  const bool leads = detail::thread_of_block() == 0;
  uint32_t count = 0;
  if (__syncthreads_and(!leads || detail::begin_partition(*transfer, partition, count)) == 0) return nullptr;
  return transfer->target + partition * transfer->partition_bytes;
}
__device__ __forceinline__ void publish(PreparedTransfer* transfer, uint64_t partition, uint32_t num_blocks = 1) {
  __syncthreads();
  if (detail::thread_of_block() != 0 || !detail::is_last_block(*transfer, partition, num_blocks)) return;
  detail::publish_partition(*transfer, partition, detail::load_relaxed(transfer->started));
}

// Any thread; receiver. Returns whether the partition has arrived since start(). After true, this thread may read it;
// other threads may after a barrier.
__device__ __forceinline__ bool parrived(PreparedTransfer* transfer, uint64_t partition) {
  if (partition >= transfer->num_partitions) {
    return detail::report(*transfer, detail::kMisuse, partition, detail::kNoPartition);
  }
  const uint32_t count = detail::load_relaxed(transfer->started), waited = detail::load_relaxed(transfer->waited);
  return detail::load_acquire(transfer->done + partition) == count && count != waited;
}

// Block. Receiver: waits until the partition has arrived; then all threads of the block may read it. Sender: waits
// until the partition has been sent.
__device__ __forceinline__ bool wait(PreparedTransfer* transfer, uint64_t partition) {
  return __syncthreads_and(detail::thread_of_block() != 0 || detail::await_partition(*transfer, partition)) != 0;
}

}  // namespace axon
