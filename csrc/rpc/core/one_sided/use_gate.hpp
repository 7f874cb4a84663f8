// Counts the uses of memory that any thread begins, until the gate is closed. The caller of close() learns whether uses
// are left. If so, the end of the last one says that there is none any more.
//
//   if (!gate.enter()) return closed();      // any thread
//   if (gate.leave()) on_closed_and_empty(); // once for each enter(): true for the last one after close()
//   if (gate.close()) on_closed_and_empty(); // true if there is no use
#pragma once

#include <cstdint>

#include "base/sync.hpp"

namespace axon::rpc {

class UseGate {
 public:
  bool enter() noexcept {
    uint64_t state = state_.load(std::memory_order_relaxed);
    while ((state & kClosed) == 0) {
      if (state_.compare_exchange_weak(state, state + 1)) return true;
    }
    return false;
  }
  bool leave() noexcept { return state_.fetch_sub(1) == (kClosed | 1); }
  bool close() noexcept { return (state_.fetch_or(kClosed) & ~kClosed) == 0; }
  bool is_empty() const noexcept { return (state_.load() & ~kClosed) == 0; }

 private:
  static constexpr uint64_t kClosed = uint64_t{1} << 63;
  sync::atomic<uint64_t> state_{0};  // sequentially consistent: a use that has entered is seen by close()
};

}  // namespace axon::rpc
