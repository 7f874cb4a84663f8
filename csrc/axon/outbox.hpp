// The messages to one mailbox of a peer: calls that are opened for it arrive in the order in which they are started.
// See axon/mailbox.hpp. Copies refer to the same outbox. Any thread may use it.
#pragma once

#include <string>
#include <utility>

#include "axon/peer.hpp"

namespace axon::library {

/// The messages to one mailbox of a peer, as Runtime::outbox returns it.
class Outbox {
 public:
  Outbox(Peer peer, std::string function) noexcept : peer_(std::move(peer)), function_(std::move(function)) {}

 private:
  friend class Call;
  Peer peer_;
  std::string function_;  // the runtime's own function that represents the mailbox at the peer
};

}  // namespace axon::library
