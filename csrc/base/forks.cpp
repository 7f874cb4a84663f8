#include "base/forks.hpp"

#include <pthread.h>

#include <atomic>

namespace axon {

// Written in a forked child, which starts with a single thread.
static std::atomic<uint32_t> count{0};

[[maybe_unused]] static const int registered =
    pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });

uint32_t num_forks() noexcept {
  return count.load(std::memory_order_relaxed);
}

}  // namespace axon
