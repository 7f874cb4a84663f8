// Measures by how much longer than others a message of a peer was on its way, although the clocks of two hosts differ.
// The shortest difference between sending and receipt so far counts as no delay (as the base delay of RFC 6817 does).
// Clocks drift, so that difference may grow with its age.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/sync.hpp"

namespace axon::rpc {

// Returns the send time that a message carries: milliseconds of its sender's clock, which wrap.
inline uint32_t time_stamp(sync::Clock::time_point now) noexcept {
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count());
}

class DelayGauge {
 public:
  // Returns the delay of a message with this stamp that is received at `now`; never more than the true delay.
  std::chrono::milliseconds delay_of(uint32_t stamp, sync::Clock::time_point now) noexcept {
    const uint32_t difference = time_stamp(now) - stamp;
    const int64_t age = has_base_ ? (now - based_at_) / std::chrono::milliseconds(1) : 0;
    const int64_t excess = has_base_ ? static_cast<int32_t>(difference - base_) - age / kDriftDivisor : 0;
    if (!has_base_ || excess <= 0) {
      base_ = difference;
      based_at_ = now;
      has_base_ = true;
    }
    return std::chrono::milliseconds(std::max<int64_t>(excess, 0));
  }

 private:
  // 244 parts in a million; server crystals are within 100.
  static constexpr int64_t kDriftDivisor = 4096;

  uint32_t base_ = 0;
  sync::Clock::time_point based_at_{};
  bool has_base_ = false;
};

}  // namespace axon::rpc
