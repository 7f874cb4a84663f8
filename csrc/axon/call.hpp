// One call of a function of a peer, or one message to a mailbox of a peer. The object can be reused, and allocates
// nothing from its second use on.
//
//   axon::Call call(server, "add");
//   for (int i = 0; i < 10; ++i) {
//     call.request().integer(i);
//     call.start();
//     if (!call.wait(1s)) call.cancel();
//     if (call.status().ok()) use(call.reply().values().next());
//     call.open(server, "add");
//   }
//
// One thread at a time may use it. It may be destroyed at any time: a call in flight continues without it. Then the
// memory that it references must stay valid, unless it has an Owner, and so must the objects to which its callbacks
// refer.
//
// Accessors are defined in every state. Before the call is finished, the status is a success and the reply is empty. A
// call that has been moved from is finished and released, with the status kInvalidArgument, until it is opened or
// assigned to. Writing, starting or telling it ends the process with a message.
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

/// One call of a function of a peer, or one message to a mailbox of a peer.
class Call {
 public:
  /// Opens a call.
  /// @param peer the peer
  /// @param function the name of the function; the call fails if it has more than 255 bytes
  Call(const Peer& peer, std::string_view function);
  /// Opens a message to a mailbox. Messages arrive in the order in which they are started. The call is finished when
  /// the mailbox has accepted the message. Its request is one value.
  /// @param outbox the mailbox of the peer
  explicit Call(const Outbox& outbox);
  Call(Call&& other) noexcept;
  Call& operator=(Call&& other) noexcept;
  ~Call();

  /// Opens another call, after the previous one has finished. Timeout and callbacks are kept.
  /// @param peer this peer or another one
  /// @param function the name of the function
  void open(const Peer& peer, std::string_view function);
  /// Opens another message to a mailbox, after the previous call has finished. Timeout and callbacks are kept.
  /// @param outbox the mailbox of the peer
  void open(const Outbox& outbox);
  /// @return the request, to be written before start() or tell()
  Message request() noexcept;
  /// Sets the time after which the call fails with kTimeout.
  /// @param timeout by default 30 s
  void set_timeout(std::chrono::milliseconds timeout) noexcept;
  /// Sets a function that chooses memory for the tensors of the reply; reply() has this memory then. If the call ends
  /// in another way meanwhile, the function may still be running until the call is released. If the call is opened
  /// again before that, another copy of the function is called.
  /// @param ask the function; it must not wait
  void on_announced(Ask ask);
  /// Sets a function that is called once per call, just before finished() returns true, by the thread that drives the
  /// engine. It may read status() and reply() and start other calls, but must not wait for calls.
  /// @param callback the function
  void on_finished(std::function<void()> callback);

  /// Starts the call, once. It never blocks: a call that cannot be sent yet is queued. Beyond the limit of queued calls
  /// it fails with kResourceExhausted.
  void start() noexcept;
  /// Starts a one-way call, once: it is finished when it has been sent. For a message to a mailbox, this is start().
  void tell() noexcept;

  /// Drives the engine until the call is finished.
  /// @param timeout the longest wait
  /// @return whether the call is finished; if not, it continues
  bool wait(std::chrono::milliseconds timeout) noexcept;
  /// @return whether the call has ended
  bool finished() const noexcept;
  /// Returns whether the transport is done with the call. Then the memory that the request references is free, and so
  /// is the memory into which a failed call was to be received. This follows soon after finished(), unless the peer is
  /// lost: then it may take until the end of the process.
  /// @return whether the memory is free
  bool released() const noexcept;
  /// Ends the call with kCancelled, unless it has finished, and notifies the function.
  void cancel() noexcept;

  /// @return the status of a finished call. kRemote: the function failed; the message is the class of its error, and
  ///   failure() its text
  const Status& status() const noexcept;
  /// @return the reply of a finished call
  Received reply() noexcept;
  /// @return the text of the function's error, if the function failed
  std::string_view failure() noexcept;
  /// @return the traceback of an error in Python; otherwise empty
  std::string_view traceback() noexcept;

 private:
  friend class Publication;

  struct State;
  // Sends a message that has been written and sealed before, and that its owner keeps.
  void tell(const rpc::Outbound& sealed, Owner owner);
  rpc::ValueReader failure_values() const noexcept;
  void take_ask();
  void launch() noexcept;
  void let_go() noexcept;
  // Ends the process if the call has been moved from.
  State& state() const noexcept;

  State* state_ = nullptr;  // shared with the engine while the engine needs it
  bool is_started_ = false;
  Ask ask_;                   // the user's original; a copy is called, so that this one may be copied meanwhile
  bool has_new_ask_ = false;  // the state does not have it yet
};

}  // namespace axon::library
