// Lets a waiting thread give up after a signal whose handler has raised an exception (Ctrl-C).
//
//   while (!is_ready()) {
//     if (interrupts::are_pending()) return interrupts::interrupted();
//     sleep_until(interrupts::next_look(deadline));
//   }
//
// The engine itself knows nothing of signal handlers. Python's bindings set the check, which may run handlers. So a
// caller must hold no lock that a handler could want.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/status.hpp"
#include "base/sync.hpp"

namespace axon::interrupts {

// How long a waiting thread takes at most to notice Ctrl-C.
inline constexpr std::chrono::milliseconds kInterval{100};

using Check = bool (*)() noexcept;
// Call it once, before the first wait.
void set_check(Check check) noexcept;

bool are_pending() noexcept;

inline sync::Clock::time_point next_look(sync::Clock::time_point deadline) noexcept {
  return std::min(deadline, sync::Clock::now() + kInterval);
}

inline Status interrupted() {
  return {ErrorCode::kCancelled, "interrupted by a signal"};
}

}  // namespace axon::interrupts
