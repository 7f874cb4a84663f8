// PTX of bulk copies (cp.async.bulk, from Hopper on). One thread moves up to some KB between shared and global memory
// while its warp does other things. Global memory may be a peer's. Sizes and addresses are multiples of 16 bytes.
//
// These copies go through the *async proxy*, another path to memory than that of ordinary accesses. They see what
// ordinary accesses wrote only after a fence_proxy() of the writer, and vice versa.
#pragma once

#include "kernels/ptx.cuh"

namespace axon::kernels {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void fence_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// The same for shared memory alone.
__device__ __forceinline__ void fence_proxy_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Counts the bytes of loads that have arrived. The parity of phases alternates, starting with 0.
class LoadBarrier {
 public:
  // Called by one thread. fence_proxy() and a barrier of the threads that use the object must follow.
  __device__ __forceinline__ void initialize() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&word_)) : "memory");
  }

  // Called by one thread in each phase, with the number of bytes that the phase loads.
  __device__ __forceinline__ void expect(uint32_t num_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&word_)), "r"(num_bytes)
                 : "memory");
  }

  // Waits for the end of the phase. This depends on no peer: a load that was started always completes.
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

// Stores are counted in groups by the thread that starts them.
__device__ __forceinline__ void begin_store(std::byte* target, const void* shared, uint32_t num_bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(shared_address(shared)),
               "r"(num_bytes)
               : "memory");
}

__device__ __forceinline__ void close_store_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all of this thread's stores have been read from shared memory.
__device__ __forceinline__ void await_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until they have been written to global memory.
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Several consecutive loads are in flight together: the compiler keeps them before the code that uses them.
__device__ __forceinline__ Vector16 load_shared(const Vector16* vector) {
  Vector16 value;
  asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(value.low), "=l"(value.high) : "r"(shared_address(vector)));
  return value;
}

}  // namespace axon::kernels
