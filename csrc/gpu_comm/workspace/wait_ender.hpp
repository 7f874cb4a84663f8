// Ends the waits of streams for words in the host's memory, whatever else the process's threads are stuck in: a thread
// of its own stores 1 into all of them again and again, since a stream takes the words of one wait and comes to the
// next.
//
//   AXON_TRY(WaitEnder::prepare());
//   WaitEnder ender(words);
//   ender.begin();              // until it is destroyed
//
// It never calls CUDA: a thread that launches into a full queue, behind such a wait, holds the driver's locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.hpp"

namespace axon::gpu_comm {

class WaitEnder {
 public:
  // Starts the thread, before the first one is made. Fails with kResourceExhausted where the system starts no more.
  static Status prepare();
  explicit WaitEnder(std::span<uint32_t> words);
  ~WaitEnder();
  WaitEnder(const WaitEnder&) = delete;
  WaitEnder& operator=(const WaitEnder&) = delete;

  // Any thread; does not block. Idempotent.
  void begin() noexcept;

 private:
  struct Registry;

  const std::span<uint32_t> words_;
  std::atomic<bool> has_begun_{false};  // relaxed: publishes nothing else
};

}  // namespace axon::gpu_comm
