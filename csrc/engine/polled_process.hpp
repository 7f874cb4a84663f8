// A process that is looked at now and then, where no descriptor tells of its end: before Linux 5.3, or where a seccomp
// profile refuses pidfd_open, as those of Docker before 20.10 do.
#pragma once

#include <cstdint>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

class PolledProcess {
 public:
  // kPeerLost: it has ended. kTransport: /proc does not show it.
  static Result<PolledProcess> find(int32_t pid, transport::PeerId peer);

  transport::PeerId peer() const noexcept { return peer_; }
  // Also once another process has its number, and while its parent has not asked for how it ended. A few microseconds.
  bool has_ended() const noexcept;

 private:
  PolledProcess(int32_t pid, transport::PeerId peer, uint64_t start_time) noexcept
      : pid_(pid), peer_(peer), start_time_(start_time) {}

  int32_t pid_;
  transport::PeerId peer_;
  uint64_t start_time_;  // in ticks since the system started
};

}  // namespace axon::engine
