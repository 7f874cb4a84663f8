// Waits for operations of the host engine in calls that a user's thread makes. Ctrl-C ends these waits.
#pragma once

#include "base/interrupts.hpp"
#include "engine/communicator.hpp"

namespace axon::gpu_comm {

// Returns whether the operation has finished; false if the deadline passed or interrupts are pending. The caller must
// not hold a lock that a signal handler could need.
inline bool wait_attentively(engine::Communicator& communicator, engine::Operation& operation,
                             sync::Clock::time_point deadline) noexcept {
  while (!communicator.wait(operation, interrupts::next_look(deadline))) {
    if (interrupts::are_pending() || sync::Clock::now() >= deadline) return operation.finished();
  }
  return true;
}

}  // namespace axon::gpu_comm
