// Streams of messages: sent to a tag at a peer, taken there in order, held back while nobody takes them.
//
//   axon::Mailbox news = runtime.mailbox("news").value();             // before peers send
//   axon::Result<axon::Mail> mail = news.take(1s);
//   if (mail.ok()) use(mail.value().values().next());
//
//   axon::Outbox to_news = runtime.outbox(server, "news").value();    // the other end
//   axon::Call call(to_news);
//   call.request().integer(7);                                        // one value
//   call.start();                                                     // finished once it is accepted
//
// Copies are the same mailbox; for any thread. One that has been moved from is empty and closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "axon/announced.hpp"
#include "axon/invocation.hpp"
#include "axon/message.hpp"
#include "axon/peer.hpp"
#include "base/status.hpp"
#include "memory/block.hpp"
#include "memory/owner.hpp"

namespace axon::library {

struct MailboxOptions {
  // Messages that are accepted ahead of those who take them. Others wait at their senders, but for one of each.
  size_t capacity = 64;
  // Where their tensors go, several on their way at a time; none: in blocks. What it gives has an Owner, and stays as
  // long as the Mail: small tensors are copied else. The values are as they travel, see docs/wire.md.
  Ask ask{};
};

// A message that has been taken, with its memory.
class Mail {
 public:
  // Takes over what has come.
  explicit Mail(Invocation& invocation);

  const Peer& sender() const noexcept { return sender_; }
  // The value.
  ValueReader values() const noexcept;
  size_t num_tensors() const noexcept { return tensors_.size(); }
  // Empty where there is none.
  Tensor tensor(size_t index) const noexcept;
  // Its memory, for as long as the block is kept. Once; not of what has come into memory of its receiver's.
  Block take(size_t index) noexcept;
  // What that was given with; likewise.
  Owner take_owner(size_t index) noexcept;

 private:
  struct Kept {
    DataType type;
    std::vector<int64_t> shape;
    std::span<std::byte> data;
    Block block;
    Owner owner;
  };

  Peer sender_;
  std::vector<std::byte> values_;
  std::vector<Kept> tensors_;
};

class Mailbox {
 public:
  class State;
  explicit Mailbox(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  // How many messages have come that nobody has taken; not those that wait at their senders.
  size_t probe() const noexcept;
  // The next message; drives until it is there. kTimeout after `patience`; kAborted when the runtime is closed, after
  // what has come before.
  Result<Mail> take(std::chrono::milliseconds patience);

 private:
  std::shared_ptr<State> state_;  // owned with the runtime, which may be closed before
};

}  // namespace axon::library
