#include "transport/rails/link_speed.hpp"

#include <chrono>
#include <utility>

#include "codec/codec.hpp"

namespace axon::transport {

// Several ticks of the kernel, in which it counts. A link of 1 Gbit/s carries 2.5 MB in that time.
static constexpr std::chrono::milliseconds kLeastMeasured{20};

// A connection cannot have been sending for longer than the time that has passed, which saves most system calls.
bool LinkSpeed::measure(const FileDescriptor& socket) noexcept {
  const auto time = std::chrono::steady_clock::now();
  if (since_ && time - began_ < kLeastMeasured) return false;
  const std::optional<TcpProgress> now = tcp_progress(socket);
  if (!now) return false;
  if (!since_) {
    since_ = now;
    began_ = time;
  }
  const std::chrono::duration<double> seconds = now->sending - since_->sending;
  if (seconds < kLeastMeasured) return false;
  const auto num_bytes = static_cast<double>(now->num_acknowledged - since_->num_acknowledged);
  since_ = now;
  began_ = time;
  const Speed speed = num_bytes / seconds.count() < codec::pays_below() ? Speed::kSlow : Speed::kFast;
  return std::exchange(speed_, speed) != speed;
}

}  // namespace axon::transport
