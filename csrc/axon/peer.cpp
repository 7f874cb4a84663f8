#include "axon/peer.hpp"

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

}  // namespace axon::library
