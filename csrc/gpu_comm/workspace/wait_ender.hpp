// Ends waits of streams for flags in host memory, even if the process's other threads are blocked. Its own thread
// stores 1 into all of these flags again and again, since a stream resets the flags of one wait and proceeds to the
// next wait.
//
//   AXON_TRY(WaitEnder::prepare());
//   WaitEnder ender(flags);
//   ender.begin();              // continues until the ender is destroyed
//
// The thread never calls CUDA: a thread that launches into a queue filled up by such a wait holds the driver's locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.hpp"

namespace axon::gpu_comm {

class WaitEnder {
 public:
  // Starts the thread, before the first WaitEnder is constructed. Fails with kResourceExhausted where the system starts
  // no more threads.
  static Status prepare();
  explicit WaitEnder(std::span<uint32_t> flags);
  ~WaitEnder();
  WaitEnder(const WaitEnder&) = delete;
  WaitEnder& operator=(const WaitEnder&) = delete;

  // Thread-safe and idempotent; does not block.
  void begin() noexcept;

 private:
  struct Registry;

  const std::span<uint32_t> flags_;
  std::atomic<bool> has_begun_{false};  // relaxed: it publishes no other data
};

}  // namespace axon::gpu_comm
