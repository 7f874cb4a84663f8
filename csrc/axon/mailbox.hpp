// Streams of messages. A sender addresses a tag at a peer; the receiver takes the messages in order. While the receiver
// takes none, messages wait at their senders.
//
//   axon::library::Mailbox news = runtime.mailbox("news").value();             // before peers send
//   axon::Result<axon::Mail> mail = news.take(1s);
//   if (mail.ok()) use(mail.value().values().next());
//
//   axon::Outbox to_news = runtime.outbox(server, "news").value();    // the other end
//   axon::Call call(to_news);
//   call.request().integer(7);                                        // one value
//   call.start();                                                     // finished once it is accepted
//
// Copies refer to the same mailbox. All functions may be called from any thread. A Mailbox that has been moved from is
// empty and closed.
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
#include "memory/host_buffer.hpp"
#include "memory/owner.hpp"

namespace axon::library {

struct MailboxOptions {
  // How many messages are accepted before they are taken. Of further ones each sender has one here at most; the rest
  // wait there.
  size_t capacity = 64;
  // Says where the tensors of a message go; if empty, they go into blocks. It may be asked for several messages before
  // the first of them has come. The memory that it returns needs an Owner, which lives as long as the Mail; without
  // one, small tensors are copied. It sees the values as they travel (docs/wire.md).
  Ask ask{};
};

// A message that has been taken, with its memory. One that has been moved from has no sender, no value and no tensors.
class Mail {
 public:
  // Takes the content of a message that has come.
  explicit Mail(Invocation& invocation);

  const Peer& sender() const noexcept { return sender_; }
  // Returns a reader of the message's value.
  rpc::ValueReader values() const noexcept;
  size_t num_tensors() const noexcept { return tensors_.size(); }
  // Returns an empty tensor if there is none of this index.
  Tensor tensor(size_t index) const noexcept;
  // Hands over the tensor's memory, which then lives as long as the block. Returns an empty block the second time, and
  // for tensors that have come into the receiver's own memory.
  HostBuffer take(size_t index) noexcept;
  // Hands over the Owner of the receiver's own memory that the tensor has come into; likewise once.
  Owner take_owner(size_t index) noexcept;

 private:
  struct Kept {
    DataType type;
    std::vector<int64_t> shape;
    std::span<std::byte> data;
    HostBuffer host_buffer;
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

  // Returns how many messages have come and have not been taken. Those that wait at their senders do not count.
  size_t probe() const noexcept;
  // Returns the next message, and drives the engine until it has come. Fails with kTimeout after `timeout`, and with
  // kAborted once the runtime is closed and all that came before has been taken.
  Result<Mail> take(std::chrono::milliseconds timeout);

 private:
  std::shared_ptr<State> state_;  // owned with the runtime, which may be closed before
};

}  // namespace axon::library
