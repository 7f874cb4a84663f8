// Timeouts from Python, and waits that run signal handlers in the meantime.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>

#include "base/interrupts.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"

namespace axon::rpc_python {

// Limits the timeout to a year, which can be added to a clock without overflow.
std::chrono::duration<double> timeout_of(double seconds);
sync::Clock::time_point deadline_in(double seconds);

// Waits without the GIL, and runs signal handlers in the meantime. `wait_until` waits until a time, and returns whether
// the condition holds.
template <typename WaitUntil>
bool wait_for(double timeout_s, WaitUntil wait_until) {
  const sync::Clock::time_point deadline = deadline_in(timeout_s);
  while (true) {
    const bool is_there = [&] {
      const python::GilReleased no_gil;
      const bool result = wait_until(interrupts::next_look(deadline));
      python::block_if_runtimes_end();
      return result;
    }();
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    if (is_there || sync::Clock::now() >= deadline) return is_there;
  }
}

}  // namespace axon::rpc_python
