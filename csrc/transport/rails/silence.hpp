// Tells a connection whose other host has fallen silent from one whose process is only slow or stopped. The kernel of a
// stopped process goes on acknowledging data, and probes of its full receive window.
//
//   silence.note_sent();
//   if (silence.look(socket, is_blocked)) …     // every kLookInterval, while is_awaited()
//
// One thread at a time.
#pragma once

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <string>

#include "base/file_descriptor.hpp"

namespace axon::transport {

class Silence {
 public:
  static constexpr std::chrono::seconds kLookInterval{1};
  static constexpr std::chrono::seconds kMost{10};

  void note_sent() noexcept { has_sent_ = true; }
  // Returns whether something that was sent may not be acknowledged yet.
  bool is_awaited() const noexcept { return has_sent_; }

  // Returns whether the other host has acknowledged nothing for kMost, although something is on the way. A probe of a
  // full receiver counts as data on the way.
  bool look(const FileDescriptor& socket, bool is_blocked) noexcept {
    if (!is_blocked && !has_sent_) return false;
    tcp_info info{};
    socklen_t num_bytes = sizeof info;
    if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &num_bytes) != 0) return false;
    int num_queued = 0;  // bytes that were not sent, or not acknowledged
    ioctl(socket.get(), SIOCOUTQ, &num_queued);
    has_sent_ = num_queued != 0;
    const bool awaits_answer = info.tcpi_unacked != 0 || info.tcpi_probes != 0;
    const auto since_answer = std::chrono::milliseconds(info.tcpi_last_ack_recv);
    lasts_ = awaits_answer && since_answer > kLookInterval ? lasts_ + kLookInterval : std::chrono::seconds{0};
    return lasts_ >= kMost;
  }
  std::string describe() const {
    return "its host has acknowledged nothing for " + std::to_string(lasts_.count()) + " seconds";
  }

 private:
  bool has_sent_ = false;  // something since the last look
  std::chrono::seconds lasts_{0};
};

}  // namespace axon::transport
