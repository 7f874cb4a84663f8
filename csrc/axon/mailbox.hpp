// Mailboxes: ordered streams of messages to a tag of a peer, with flow control.
//
//   axon::Mailbox news = runtime.mailbox("news").value();  // before peers send
//   axon::Result<axon::Mail> mail = news.take(1s);
//   if (mail.ok()) use(mail.value().values().next());
//
//   axon::Outbox to_news = runtime.outbox(server, "news").value();  // the other end
//   axon::Call call(to_news);
//   call.request().integer(7);  // one value
//   call.start();  // finished when the message is accepted
//
// Copies refer to the same mailbox. Any thread may use it. A mailbox that has been moved from is empty and closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "axon/announced.hpp"
#include "axon/message.hpp"
#include "axon/peer.hpp"
#include "base/status.hpp"
#include "memory/host_buffer.hpp"
#include "memory/owner.hpp"

namespace axon::rpc {
class Invocation;
}  // namespace axon::rpc

namespace axon::library {

/// Options of a mailbox.
struct MailboxOptions {
  /// Number of messages that are accepted before they are taken. Further ones are queued at their senders, except one
  /// per sender.
  size_t capacity = 64;
  /// Chooses memory for the tensors of the messages, of which several arrive at a time. Without it, the runtime
  /// provides memory. Memory given here needs an Owner, and must stay valid as long as the Mail; otherwise small
  /// tensors are copied. The values are in their wire form, see docs/wire.md.
  Ask ask{};
};

/// A message that has been taken, with its memory.
class Mail {
 public:
  // Takes over the received message; for the library itself.
  explicit Mail(rpc::Invocation& invocation);

  /// @return the peer that sent the message
  const Peer& sender() const noexcept { return sender_; }
  /// @return a reader of the value
  rpc::ValueReader values() const noexcept;
  /// @return the number of tensors
  size_t num_tensors() const noexcept { return tensors_.size(); }
  /// @param index which tensor, as a value of kind kTensor counts
  /// @return the tensor; empty if there is none of this index
  Tensor tensor(size_t index) const noexcept;
  /// Takes the memory of a tensor, which stays valid as long as the result is kept.
  /// @param index which tensor
  /// @return the memory, the first time; empty for a tensor in memory of the receiver
  HostBuffer take(size_t index) noexcept;
  /// Takes the owner of the receiver's memory in which a tensor is.
  /// @param index which tensor
  /// @return the owner, the first time; otherwise empty
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

/// The messages of all peers to one tag.
class Mailbox {
 public:
  class State;
  explicit Mailbox(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  /// @return how many messages have arrived and not been taken, without those queued at their senders
  size_t probe() const noexcept;
  /// Takes the next message, and drives the engine until there is one.
  /// @param timeout the longest wait
  /// @return the message, or an error: kTimeout, or kAborted if the runtime is closed and no message is left
  Result<Mail> take(std::chrono::milliseconds timeout);

 private:
  std::shared_ptr<State> state_;  // shared with the runtime, which may be closed first
};

}  // namespace axon::library
