#include "axon/peer.hpp"

#include "axon/deadline.hpp"
#include "runtime/connection.hpp"

namespace axon::library {

const std::string& Peer::name() const noexcept {
  return connection_->identity().name;
}

uint64_t Peer::incarnation() const noexcept {
  return connection_->identity().incarnation;
}

Status Peer::failure() const noexcept {
  return connection_->failure();
}

// What ends it at its deadline, and whoever waits for that drives: soon after.
static constexpr std::chrono::seconds kLongestEnd{1};

bool Peer::drain(std::chrono::milliseconds at_most) noexcept {
  const sync::Clock::time_point deadline = deadline_in(at_most);
  connection_->close(deadline);
  if (Engine::is_delivering()) return false;
  return connection_->await_end(deadline + kLongestEnd) && connection_->has_drained();
}

void Peer::close() noexcept {
  drain(std::chrono::milliseconds::zero());
}

}  // namespace axon::library
