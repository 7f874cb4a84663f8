// Measures whether a rail's link is slow: slower than the codec, and than a core that copies. The thread that sends
// over the connection uses it.
//
//   LinkSpeed link;
//   if (link.measure(socket)) …                    // what is known has changed
//   if (link.speed() == LinkSpeed::Speed::kSlow) …
#pragma once

#include <chrono>
#include <optional>

#include "base/file_descriptor.hpp"
#include "base/tcp_progress.hpp"

namespace axon::transport {

class LinkSpeed {
 public:
  enum class Speed : uint8_t { kUnknown, kSlow, kFast };

  Speed speed() const noexcept { return speed_; }
  // Returns whether speed() is another one now. It follows the link's after some megabytes.
  bool measure(const FileDescriptor& socket) noexcept;

 private:
  std::optional<TcpProgress> since_;  // the start of this measurement
  std::chrono::steady_clock::time_point began_{};
  Speed speed_ = Speed::kUnknown;
};

}  // namespace axon::transport
