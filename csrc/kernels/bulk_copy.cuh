// PTX of bulk copies (cp.async.bulk, from Hopper on): one thread moves up to some KB between shared and global memory,
// also that of a peer, in multiples of 16 bytes between addresses of that alignment, while its warp does other things.
//
// These go through the *async proxy*, another way to memory than ordinary accesses take. What ordinary accesses wrote
// they see only behind a fence_proxy() of the writer, and the other way round.
#pragma once

#include "kernels/ptx.cuh"

namespace axon::kernels {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void fence_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// … of shared memory alone.
__device__ __forceinline__ void fence_proxy_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Counts the bytes of loads that have come. Phases alternate in parity, the first has 0.
class LoadBarrier {
 public:
  // By one thread; fence_proxy() and a barrier of the threads that use it follow.
  __device__ __forceinline__ void initialize() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&word_)) : "memory");
  }

  // By one thread a phase: how many bytes it takes.
  __device__ __forceinline__ void expect(uint32_t num_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word_)), "r"(num_bytes)
                 : "memory");
  }

  // Until the phase is over. Not a wait for a peer: what has been begun comes.
  __device__ __forceinline__ void await(uint32_t parity) {
    uint32_t is_over = 0;
    while (is_over == 0) {
      asm volatile(
          "{\n.reg .pred over;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
          "selp.u32 %0, 1, 0, over;\n}"
          : "=r"(is_over)
          : "r"(shared_address(&word_)), "r"(parity)
          : "memory");
    }
  }

  __device__ __forceinline__ uint32_t address() const { return shared_address(&word_); }

 private:
  uint64_t word_;
};

__device__ __forceinline__ void begin_load(void* shared, const std::byte* source, uint32_t num_bytes,
                                           const LoadBarrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(source), "r"(num_bytes), "r"(barrier.address())
               : "memory");
}

// Stores are counted by the thread that begins them, in groups.
__device__ __forceinline__ void begin_store(std::byte* target, const void* shared, uint32_t num_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(shared_address(shared)),
               "r"(num_bytes)
               : "memory");
}

__device__ __forceinline__ void close_store_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until all of this thread's stores have left shared memory.
__device__ __forceinline__ void await_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// … and are in global memory.
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Several in a row are under way together: the compiler leaves them in front of what uses them.
__device__ __forceinline__ Vector16 load_shared(const Vector16* vector) {
  Vector16 value;
  asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(value.low), "=l"(value.high) : "r"(shared_address(vector)));
  return value;
}

}  // namespace axon::kernels
