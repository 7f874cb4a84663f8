// What threads sleep on that drive the engine.
//
//   background thread   an event that any thread can ring, the processes of the peers on this host, and, in deep sleep
//                       only, the transport's event descriptor
//   a waiter            the transport's event descriptor, and an event of its own: while one blocks, the background
//                       thread does not
//
// The kernel makes a process's descriptor readable the moment the process ends, whatever the transport believes: over
// shared memory UCX never notices.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "base/sync.hpp"
#include "engine/polled_process.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

enum class Sleep : uint8_t {
  kLight,  // does not hear the transport: for short sleeps while others drive
  kDeep,   // hears it; arm the transport first
};

class Doorbell {
 public:
  // Throws std::runtime_error when the process is out of descriptors. `transport_fd` is the transport's event_fd().
  explicit Doorbell(int transport_fd);

  // Ends the background thread's sleep in progress, or its next one.
  void ring() noexcept;
  // Ends the waiter's likewise.
  void ring_waiter() noexcept;

  // From now on sleep() tells when the process ends. Fails if it has ended already (kPeerLost), or if no descriptor is
  // left for it (kResourceExhausted). Progress owner only.
  Status watch(int32_t pid, transport::PeerId peer);

  // Sleeps until rung, something came (kDeep), a watched process ended, or the time is over. Returns the peers whose
  // processes have ended, each once. Background thread only; the span is valid until the next call.
  std::span<const transport::PeerId> sleep(Sleep depth, std::chrono::microseconds at_most) noexcept;

  // A waiter's sleep, one thread at a time; arm the transport first. Returns whether the transport has something.
  bool block_on_events(std::chrono::microseconds at_most) noexcept;

  // Gives back all descriptors. Once the background thread has ended; whatever is called from then on does nothing.
  void close() noexcept;

 private:
  class Pass;

  void forget(int process) noexcept;
  Status watch_without_descriptor(int32_t pid, transport::PeerId peer, int error);
  size_t look_at_polled(size_t num_ended) noexcept;

  static constexpr size_t kMostEvents = 16;
  static constexpr std::chrono::milliseconds kBetweenLooks{50};

  const int transport_fd_;
  std::atomic<bool> is_closed_{false};
  std::atomic<int> num_inside_{0};  // threads that may use the descriptors
  FileDescriptor background_event_;
  FileDescriptor waiter_event_;
  FileDescriptor light_;  // background_event_ and processes
  FileDescriptor deep_;   // light_ and the transport
  std::mutex mutex_;
  std::vector<FileDescriptor> watched_;  // guarded by mutex_; processes that have not ended
  std::vector<PolledProcess> polled_;    // guarded by mutex_; likewise, where no descriptor is to be had
  std::atomic<size_t> num_polled_{0};    // of these: a hint
  sync::Clock::time_point next_look_{};  // at them; background thread only
  std::array<transport::PeerId, kMostEvents> ended_{};
};

}  // namespace axon::engine
