// Waits for operations of the host engine, in calls that a user's thread makes: Ctrl-C ends them.
#pragma once

#include "base/interrupts.hpp"
#include "engine/communicator.hpp"

namespace axon::gpu_comm {

// Returns false where the deadline has passed, or interrupts are pending. No lock may be held that a signal handler
// could want.
inline bool wait_attentively(engine::Communicator& communicator, engine::Operation& operation,
                             sync::Clock::time_point deadline) noexcept {
  while (!communicator.wait(operation, interrupts::next_look(deadline))) {
    if (interrupts::are_pending() || sync::Clock::now() >= deadline) return operation.finished();
  }
  return true;
}

}  // namespace axon::gpu_comm
