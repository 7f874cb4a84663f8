// One call of a function at a peer, or one message to a mailbox there, to be used again and again: from the second time
// on it allocates nothing.
//
//   axon::Call call(server, "add");
//   for (…) {
//     call.request().integer(1);
//     call.start();
//     if (!call.wait(1s)) call.cancel();
//     if (call.status().ok()) … call.reply() …
//     call.open(server, "add");
//   }
//
// Written, started and read by one thread at a time. It may be destroyed at any time: a call that is under way goes on
// without it, and what it has borrowed has to stay, unless it has an Owner, as has what its callbacks refer to.
//
// Accessors are defined in every state. Before it is finished the status is a success and the reply empty. A call that
// has been moved from is finished and released, with a status of kInvalidArgument, until it is opened or assigned to;
// to write, start or tell it ends the process with a message.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "axon/announced.hpp"
#include "axon/message.hpp"
#include "axon/outbox.hpp"
#include "axon/peer.hpp"
#include "base/status.hpp"

namespace axon::library {

class Call {
 public:
  // No function has a name of more than 255 bytes: that call fails.
  Call(const Peer& peer, std::string_view function);
  // A message to a mailbox, in order with the others; finished once it is accepted. Its request is one value.
  explicit Call(const Outbox& outbox);
  Call(Call&& other) noexcept;
  Call& operator=(Call&& other) noexcept;
  ~Call();

  // For another call, of this peer or another; after the one before has finished. Timeout and callbacks stay.
  void open(const Peer& peer, std::string_view function);
  void open(const Outbox& outbox);
  // To be filled in before start() or tell(), either of which is called once.
  Message request() noexcept;
  // The call fails with kTimeout then, at the latest. 30 s unless set.
  void set_timeout(std::chrono::milliseconds timeout) noexcept;
  // Asked where the tensors of the reply go, if there are any; what it has been given is what reply() has. Of a call
  // that ends otherwise meanwhile it may still be running, until that is released; where the call is opened again
  // before, another copy of what was given is asked.
  void on_announced(Ask ask);
  // Called once each time just before finished() says so, by whichever thread drives: status() and reply() are there.
  // It may start other calls there, but not wait for any.
  void on_finished(std::function<void()> callback);

  // Never blocks: what cannot be sent yet waits, up to a bound, beyond which the call fails.
  void start() noexcept;
  // The same without an answer: finished once it has left, whatever becomes of it. Of messages to mailboxes: start().
  void tell() noexcept;

  // Drives until it is finished; false after `timeout`, when the call still goes on.
  bool wait(std::chrono::milliseconds timeout) noexcept;
  bool finished() const noexcept;
  // Nothing of it moves any more: what the request has borrowed is its owner's again, and so is what a call that has
  // failed was to be received into. Soon after it has finished, except where its peer is lost: that may take until the
  // process's end.
  bool released() const noexcept;
  // Ends it with kCancelled, unless it has finished; the function is told.
  void cancel() noexcept;

  // Once finished. kRemote: the function has failed; the message says with which class of error, failure() more of it.
  const Status& status() const noexcept;
  Received reply() noexcept;
  // What the function itself has said, if it has failed.
  std::string_view failure() noexcept;
  // Where that was in Python; empty elsewhere.
  std::string_view traceback() noexcept;

 private:
  friend class Publication;

  struct State;
  // What has been written and sealed already, and is kept by its owner.
  void tell(const rpc::Outbound& sealed, Owner owner);
  rpc::ValueReader failure_values() const noexcept;
  void take_ask();
  void launch() noexcept;
  void let_go() noexcept;
  // Ends the process where it has been moved from.
  State& state() const noexcept;

  State* state_ = nullptr;  // shared with the engine while it needs it
  bool is_started_ = false;
  Ask ask_;  // as it was given: not the one that is called, so that it may be copied while that is running
  bool has_new_ask_ = false;  // which the state does not have
};

}  // namespace axon::library
