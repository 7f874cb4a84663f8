// The messages to one mailbox of a peer's: calls that are opened for it arrive in the order in which they are started.
// See axon/mailbox.hpp. Copies are the same outbox; for any thread.
#pragma once

#include <memory>

namespace axon::library {

class Sent;

class Outbox {
 public:
  explicit Outbox(std::shared_ptr<Sent> sent) noexcept : sent_(std::move(sent)) {}

 private:
  friend class Call;
  std::shared_ptr<Sent> sent_;  // owned with the runtime, and calls under way
};

}  // namespace axon::library
