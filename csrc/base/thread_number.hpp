// A number for each thread, which no other thread of the process gets, also after it has ended. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace axon {

// Returns the calling thread's number, from 1.
inline uint32_t thread_number() noexcept {
  static std::atomic<uint32_t> latest{0};  // relaxed: the numbers differ, whatever their order
  thread_local const uint32_t number = latest.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

}  // namespace axon
