// The messages to one mailbox of a peer's: calls that are opened for it arrive in the order in which they are started.
// See axon/mailbox.hpp. Copies are the same outbox; for any thread.
#pragma once

#include <string>
#include <utility>

#include "axon/peer.hpp"

namespace axon::library {

class Outbox {
 public:
  Outbox(Peer peer, std::string function) noexcept : peer_(std::move(peer)), function_(std::move(function)) {}

 private:
  friend class Call;
  Peer peer_;
  std::string function_;  // of the runtime's own, which the mailbox is there
};

}  // namespace axon::library
