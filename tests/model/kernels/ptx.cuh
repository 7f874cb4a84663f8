// Replaces csrc/kernels/ptx.cuh and what nvcc adds to C++: threads of a program that model::explore runs are kernels.
// Sequentially consistent, whatever memory order the name says. Hosts access the same memory through sync::atomic.
#pragma once

#include <cstdint>

#include "scheduler.hpp"

#define __device__
#define __forceinline__ inline

namespace axon::kernels {

inline uint32_t load_relaxed(const uint32_t* address) {
  model::point();
  return *address;
}

inline uint32_t load_acquire(const uint32_t* address) {
  return load_relaxed(address);
}

inline void store_relaxed(uint32_t* address, uint32_t value) {
  model::point();
  *address = value;
}

inline uint32_t atomicCAS(uint32_t* address, uint32_t expected, uint32_t value) {
  const uint32_t found = load_relaxed(address);
  if (found == expected) *address = value;
  return found;
}

// Kernels read the clock in loops that wait for others.
inline uint64_t global_timer() {
  model::pause();
  return static_cast<uint64_t>(model::now().count());
}

}  // namespace axon::kernels
