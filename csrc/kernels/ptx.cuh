// The only inline PTX, but for that of bulk copies. Every access here is `relaxed` or stronger at system scope, so it
// is single-copy atomic per 8 aligned bytes, bypasses L1 and meets its counterpart on any GPU of the host and on the
// CPU.
//
// What orders other accesses has a "memory" clobber. Relaxed ones have none: packets carry their readiness, so ordinary
// accesses may pass them.
#pragma once

#include "cuda/device_types.hpp"

namespace axon::kernels {

// Pairs with store_packet: what it reads in one half was stored by one store.
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

// A thread's 16 of the 128 bytes of a line. What 8 threads of a warp store to a line by one store_vector each reads as
// a whole by one load_vector each: the hardware moves aligned 128 bytes of one instruction together, over NVLink too.
// NCCL's LL128 protocol rests on the same.
__device__ __forceinline__ Vector16 load_vector(const std::byte* address) {
  Vector16 vector;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(vector.low), "=l"(vector.high) : "l"(address));
  return vector;
}

__device__ __forceinline__ void store_vector(std::byte* address, Vector16 vector) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(vector.low), "l"(vector.high));
}

// Orders all earlier writes of this thread before it; pairs with an acquire load, on the host too.
__device__ __forceinline__ void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Orders all later accesses of this thread behind it. Pairs with what stored the packet: what is read then was there
// before, by a fence of that thread's or since it was there before its kernel.
__device__ __forceinline__ cuda::LlPacket load_acquire(const cuda::LlPacket* address) {
  cuda::LlPacket packet;
  asm volatile("ld.acquire.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.low), "=r"(packet.low_epoch), "=r"(packet.high), "=r"(packet.high_epoch)
               : "l"(address)
               : "memory");
  return packet;
}

// Orders this thread's accesses before it and behind it, among the blocks of one GPU.
__device__ __forceinline__ void fence_device() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// Orders this thread's accesses before it and behind it, for whoever synchronises with it through relaxed ones.
__device__ __forceinline__ void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

// First of all in every kernel, since it may be there before what runs ahead of it on its stream has ended
// (cuda/launch.hpp): until that has, and has left what it wrote.
__device__ __forceinline__ void await_stream() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// By all blocks, and none is still to come: from here on the next kernel on the stream may be put in place, where it
// keeps others from the multiprocessors while it waits. So only when all that this kernel waits for is in place or
// older than what would be kept out.
__device__ __forceinline__ void let_next_in() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Nanoseconds; ticks in steps of up to a microsecond.
__device__ __forceinline__ uint64_t global_timer() {
  uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

}  // namespace axon::kernels
