// A process that is polled for its end where no pidfd can report it. That is the case before Linux 5.3, or where a
// seccomp profile refuses pidfd_open, as those of Docker before 20.10 do. Owned by the doorbell.
#pragma once

#include <cstdint>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

class PolledProcess {
 public:
  // Fails with kPeerLost if the process has ended, and with kTransport if /proc does not show it.
  static Result<PolledProcess> find(int32_t pid, transport::PeerId peer);

  transport::PeerId peer() const noexcept { return peer_; }
  // Returns whether the process has ended, also if another process has its pid now, or if its parent has not reaped it
  // yet. Takes a few microseconds.
  bool has_ended() const noexcept;

 private:
  PolledProcess(int32_t pid, transport::PeerId peer, uint64_t start_time) noexcept
      : pid_(pid), peer_(peer), start_time_(start_time) {}

  int32_t pid_;
  transport::PeerId peer_;
  uint64_t start_time_;  // in ticks since the system started
};

}  // namespace axon::engine
