// All inline PTX except that of staged copies. Every access here is `relaxed` or stronger at system scope. So it is
// single-copy atomic per 8 aligned bytes, bypasses L1, and synchronises with its counterpart on the CPU and on any GPU
// of the host.
//
// Accesses that order others have a "memory" clobber. Relaxed ones have none: packets carry their readiness, so
// ordinary accesses may pass them.
#pragma once

#include "cuda/device_types.hpp"

namespace axon::kernels {

// Pairs with store_packet: the two words of a half were stored by one store.
__device__ __forceinline__ cuda::LlPacket load_packet(const cuda::LlPacket* address) {
  cuda::LlPacket packet;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.low), "=r"(packet.low_epoch), "=r"(packet.high), "=r"(packet.high_epoch)
               : "l"(address));
  return packet;
}

__device__ __forceinline__ void store_packet(cuda::LlPacket* address, cuda::LlPacket packet) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(packet.low),
               "r"(packet.low_epoch), "r"(packet.high), "r"(packet.high_epoch));
}

__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

__device__ __forceinline__ void store_relaxed(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value));
}

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
  return value;
}

__device__ __forceinline__ void store_relaxed(uint64_t* address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value));
}

struct alignas(16) Vector16 {
  uint64_t low;
  uint64_t high;
};

// A thread's 16 of the 128 bytes of a line. What 8 threads of a warp store by one store_vector each is read as a whole
// by one load_vector each. The hardware moves the aligned 128 bytes of one instruction together, over NVLink, too.
// NCCL's LL128 protocol relies on the same.
__device__ __forceinline__ Vector16 load_vector(const std::byte* address) {
  Vector16 vector;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(vector.low), "=l"(vector.high) : "l"(address));
  return vector;
}

__device__ __forceinline__ void store_vector(std::byte* address, Vector16 vector) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(vector.low), "l"(vector.high));
}

// Orders all earlier writes of this thread before it. Pairs with an acquire load, on the host, too.
__device__ __forceinline__ void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Orders all later accesses of this thread after it. Pairs with a release store, of the host, too.
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// Orders all later accesses of this thread after it. Pairs with the packet's store: later reads see what preceded that
// store. That holds if the storing thread issued a fence, or if the data was there before its kernel.
__device__ __forceinline__ cuda::LlPacket load_acquire(const cuda::LlPacket* address) {
  cuda::LlPacket packet;
  asm volatile("ld.acquire.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.low), "=r"(packet.low_epoch), "=r"(packet.high), "=r"(packet.high_epoch)
               : "l"(address)
               : "memory");
  return packet;
}

// Orders this thread's earlier accesses before its later ones, among the blocks of one GPU.
__device__ __forceinline__ void fence_device() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// Orders this thread's earlier accesses before its later ones, for threads that synchronise with it through relaxed
// accesses.
__device__ __forceinline__ void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// Must come first in every kernel, since the kernel may start before the work ahead of it on its stream has ended
// (cuda/launch.hpp). Waits until that work has ended and its writes are visible. GPUs older than Hopper start no kernel
// early, and neither does cuda::launch() if this code was compiled for one.
__device__ __forceinline__ void await_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Call this in all blocks, when all blocks are resident. From here on the next kernel on the stream may become
// resident, where it occupies multiprocessors while it waits. So call it only if everything that this kernel waits for
// is resident, or older than the kernels that would be kept out.
__device__ __forceinline__ void let_next_in() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Nanoseconds, in steps of up to a microsecond.
__device__ __forceinline__ uint64_t global_timer() {
  uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

}  // namespace axon::kernels
