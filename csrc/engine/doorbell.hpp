// The descriptors on which the threads that drive the engine sleep. Owned by the engine.
//
//   background thread   an event that any thread can ring, the processes of the peers on this host, and, in deep sleep
//                       only, the transport's event descriptor
//   waiter              the transport's event descriptor, and an event of its own; while a waiter blocks on them, the
//                       background thread does not wait for the transport
//
// The processes are in an epoll set, which exists from the first of them on. All other descriptors are polled as they
// are, so an engine without other processes on its host has two descriptors of its own.
//
// No wake-up is lost. An event stays readable from its ring until the thread that sleeps on it clears it. That thread
// checks its conditions after it has cleared the event and before its next sleep, and a caller changes them before it
// rings. So a ring between the checks and the sleep ends the sleep at once. A sleep that begins before the set exists
// does not wait for it; watch() ends that sleep by a ring.
//
// The kernel makes a pidfd readable the moment its process ends. UCX's shared memory transport never reports that.
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
  kLight,  // does not wait for the transport: for short sleeps while other threads drive
  kDeep,   // also wakes on the transport's events; arm the transport first
};

class Doorbell {
 public:
  // Throws std::runtime_error when the process is out of descriptors. `transport_fd` is the transport's event_fd().
  explicit Doorbell(int transport_fd);

  // Ends the background thread's current sleep, or its next one.
  void ring() noexcept;
  // Ends the waiter's current sleep, or its next one.
  void ring_waiter() noexcept;

  // From now on sleep() reports the end of this process. Fails if it has ended already (kPeerLost), or if no file
  // descriptor is left for it (kResourceExhausted). Progress owner only.
  Status watch(int32_t pid, transport::PeerId peer);

  // Sleeps until rung, until the transport has an event (kDeep), until a watched process ends, or for `at_most`.
  // Returns the peers whose processes have ended, each once. Background thread only; the span is valid until the next
  // call.
  std::span<const transport::PeerId> sleep(Sleep depth, std::chrono::microseconds at_most) noexcept;

  // Sleep of a waiter, one thread at a time; arm the transport first. Returns whether the transport has an event.
  bool block_on_events(std::chrono::microseconds at_most) noexcept;

  // Closes all descriptors. Call it after the background thread has ended; all later calls do nothing.
  void close() noexcept;

 private:
  class Pass;

  void forget(int process) noexcept;
  Status add_to_set(const FileDescriptor& process, uint64_t mark);
  size_t take_ended() noexcept;
  Status watch_without_descriptor(int32_t pid, transport::PeerId peer, int error);
  size_t look_at_polled(size_t num_ended) noexcept;

  static constexpr size_t kMostEvents = 16;
  static constexpr std::chrono::milliseconds kBetweenLooks{50};

  const int transport_fd_;
  std::atomic<bool> is_closed_{false};
  std::atomic<int> num_inside_{0};  // threads that may use the descriptors
  FileDescriptor background_event_;
  FileDescriptor waiter_event_;
  FileDescriptor processes_;  // an epoll set of watched_; made by the first watch(), then constant until close()
  // The descriptor of processes_, or −1. Written by the progress owner, before it rings; the background thread reads it
  // before each sleep. Release, acquire.
  std::atomic<int> processes_fd_{-1};
  std::mutex mutex_;
  std::vector<FileDescriptor> watched_;  // guarded by mutex_; processes that have not ended
  std::vector<PolledProcess> polled_;    // guarded by mutex_; processes that pidfd_open does not serve
  std::atomic<size_t> num_polled_{0};    // size of polled_: a hint
  sync::Clock::time_point next_look_{};  // next check of polled_; background thread only
  std::array<transport::PeerId, kMostEvents> ended_{};
};

}  // namespace axon::engine
