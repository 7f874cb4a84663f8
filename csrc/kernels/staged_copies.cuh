// Copies that one warp has under way between global memory, which may be a peer's, and a ring of stages in shared
// memory. A stage holds one part per rank. Sizes and addresses are multiples of 16 bytes.
//
// From Hopper on these are bulk copies (cp.async.bulk): one thread moves some KB while its warp does other things.
// Older GPUs load 16 bytes per thread and instruction (cp.async), and store from registers.
#pragma once

#include "kernels/ptx.cuh"

namespace axon::kernels {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Several consecutive loads are in flight together: the compiler keeps them before the code that uses them.
__device__ __forceinline__ Vector16 load_shared(const Vector16* vector) {
  Vector16 value;
  asm volatile("ld.shared.v2.u64 {%0, %1}, [%2];" : "=l"(value.low), "=l"(value.high) : "r"(shared_address(vector)));
  return value;
}

// The parts of one stage: part r begins `stride` bytes after part r − 1. Thread r of the warp holds the address of
// rank r's memory; the copies of all parts have one size.
struct StageParts {
  std::byte* shared;
  uint32_t stride;
  uint32_t count;
};

#if __CUDA_ARCH__ >= 900

// Bulk copies go through the *async proxy*, another path to memory than that of ordinary accesses. They see what
// ordinary accesses wrote only after a fence of the writer, and vice versa.
__device__ __forceinline__ void fence_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
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

// All functions are called by a whole warp. Round k of a stage is its k-th load, from 0.
template <uint32_t kStages>
class StagedCopies {
 public:
  using Barriers = LoadBarrier[kStages];  // in shared memory

  __device__ __forceinline__ explicit StagedCopies(Barriers& barriers) : barriers_(barriers) {
    if (threadIdx.x % 32 != 0) return;
    for (uint32_t stage = 0; stage < kStages; ++stage) barriers_[stage].initialize();
  }

  // Precedes the first load. What the warp has seen of global memory is what its loads see.
  __device__ __forceinline__ void begin() {
    fence_proxy();
    __syncwarp();
  }

  __device__ __forceinline__ void load(uint32_t stage, StageParts parts, const std::byte* source, uint32_t num_bytes) {
    const uint32_t thread = threadIdx.x % 32;
    if (thread == 0) barriers_[stage].expect(parts.count * num_bytes);
    __syncwarp();
    if (thread >= parts.count || num_bytes == 0) return;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(parts.shared + thread * parts.stride)),
                 "l"(source), "r"(num_bytes), "r"(barriers_[stage].address())
                 : "memory");
  }

  // Waits for the loads of this round.
  __device__ __forceinline__ void await_loads(uint32_t stage, uint32_t round) { barriers_[stage].await(round % 2); }

  // Waits for the first loads of all stages but the last, if no others were begun.
  __device__ __forceinline__ void await_first_loads() {
    for (uint32_t stage = 0; stage + 1 < kStages; ++stage) await_loads(stage, 0);
  }

  // Stores the first part to every target that is not null. The warp has written it by ordinary accesses.
  __device__ __forceinline__ void store(std::byte* target, StageParts parts, uint32_t num_bytes) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (target != nullptr && num_bytes != 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
                   "r"(shared_address(parts.shared)), "r"(num_bytes)
                   : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  // Waits until all stores have read their stages, which may then be loaded again.
  __device__ __forceinline__ void release_stages() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncwarp();
  }

  // Waits until all stores are in global memory.
  __device__ __forceinline__ void finish() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    fence_proxy();
  }

 private:
  Barriers& barriers_;
};

#else

// The same interface. A thread counts its own loads: it waits until at most the last kStages − 1 are on their way. So
// each stage must be loaded in its turn, if only with 0 bytes.
template <uint32_t kStages>
class StagedCopies {
 public:
  struct Barriers {};

  __device__ __forceinline__ explicit StagedCopies(Barriers&) {}

  __device__ __forceinline__ void begin() {}

  __device__ __forceinline__ void load(uint32_t, StageParts parts, const std::byte* source, uint32_t num_bytes) {
    for (uint32_t part = 0; part < parts.count; ++part) {
      const std::byte* const from = of_thread(source, part);
      const uint32_t to = shared_address(parts.shared + part * parts.stride);
      for (uint32_t offset = threadIdx.x % 32 * kVector; offset < num_bytes; offset += 32 * kVector) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + offset), "l"(from + offset) : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ __forceinline__ void await_loads(uint32_t, uint32_t) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
    __syncwarp();
  }

  __device__ __forceinline__ void await_first_loads() { asm volatile("cp.async.wait_all;" ::: "memory"); }

  __device__ __forceinline__ void store(std::byte* target, StageParts parts, uint32_t num_bytes) {
    __syncwarp();
    for (uint32_t part = 0; part < parts.count; ++part) {
      std::byte* const to = of_thread(target, part);
      if (to == nullptr) continue;
      for (uint32_t offset = threadIdx.x % 32 * kVector; offset < num_bytes; offset += 32 * kVector) {
        store_vector(to + offset, load_shared(reinterpret_cast<const Vector16*>(parts.shared + offset)));
      }
    }
  }

  __device__ __forceinline__ void release_stages() { __syncwarp(); }

  __device__ __forceinline__ void finish() {}

 private:
  static constexpr uint32_t kVector = sizeof(Vector16);

  template <typename Byte>
  static __device__ __forceinline__ Byte* of_thread(Byte* pointer, uint32_t thread) {
    return reinterpret_cast<Byte*>(__shfl_sync(0xFFFF'FFFF, reinterpret_cast<uint64_t>(pointer), thread));
  }
};

#endif

}  // namespace axon::kernels
