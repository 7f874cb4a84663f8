#include "axon/peer.hpp"

#include "axon/deadline.hpp"
#include "rpc/core/connection.hpp"

namespace axon::library {

const std::string& Peer::name() const noexcept {
  static const std::string none;
  return connection_ ? connection_->identity().name : none;
}

uint64_t Peer::incarnation() const noexcept {
  return connection_ ? connection_->identity().incarnation : 0;
}

Status Peer::failure() const noexcept {
  return connection_ ? connection_->failure() : Status(ErrorCode::kInvalidArgument, "the peer is empty");
}

// The connection ends at its deadline, as soon as a thread drives; waiting threads do.
static constexpr std::chrono::seconds kLongestDrain{1};

bool Peer::drain(std::chrono::milliseconds at_most) noexcept {
  if (!connection_) return true;
  const sync::Clock::time_point deadline = deadline_in(at_most);
  connection_->close(deadline);
  if (engine::Engine::is_completing()) return false;
  return connection_->await_end(deadline + kLongestDrain) && connection_->has_drained();
}

void Peer::close() noexcept {
  drain(std::chrono::milliseconds::zero());
}

}  // namespace axon::library
