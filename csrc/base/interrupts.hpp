// Whether a thread that waits is to give up, because a signal has come whose handler has raised an exception (Ctrl-C).
//
//   while (!is_there()) {
//     if (interrupts::are_pending()) return interrupts::interrupted();
//     sleep_until(interrupts::next_look(deadline));
//   }
//
// The engine knows nothing of signal handlers. Whoever does, Python's bindings, sets the check, which may run them: no
// lock is held around it that a handler could want.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/status.hpp"
#include "base/sync.hpp"

namespace axon::interrupts {

// How soon a thread that waits notices Ctrl-C.
inline constexpr std::chrono::milliseconds kInterval{100};

using Check = bool (*)() noexcept;
// Once, before the first wait.
void set_check(Check check) noexcept;

bool are_pending() noexcept;

inline sync::Clock::time_point next_look(sync::Clock::time_point deadline) noexcept {
  return std::min(deadline, sync::Clock::now() + kInterval);
}

inline Status interrupted() {
  return {ErrorCode::kCancelled, "interrupted by a signal"};
}

}  // namespace axon::interrupts
