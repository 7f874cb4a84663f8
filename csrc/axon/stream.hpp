// The values of a peer's generator function, in Python or C++, in order.
//
//   axon::Stream batches(server, "batches", {.ahead = 4});
//   batches.arguments(1).integer(epoch);  // one positional argument
//   axon::Message named = batches.named(1);  // one named argument
//   named.text("shuffle");
//   named.boolean(true);
//   batches.start();  // never blocks
//   while (batches.next(10s)) use(batches.received().tensor(0));
//   if (batches.finished() && batches.status().ok()) report_end();  // the generator has ended
//
// One thread at a time may use it. It ends with the generator, or with the first error; stop(), or leaving its scope,
// ends it earlier. Accessors are defined in every state: a stream that has been moved from is finished, with the status
// kInvalidArgument. Writing or starting it ends the process with a message.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

#include "axon/announced.hpp"
#include "axon/message.hpp"
#include "axon/peer.hpp"
#include "base/status.hpp"

namespace axon::library {

/// Options of a stream.
struct StreamOptions {
  size_t ahead = 16;                          // number of values that are requested before they are used
  std::chrono::milliseconds timeout{30'000};  // for each request
  /// Chooses memory for the tensors of the values, of which several arrive at a time. Memory given here must stay valid
  /// as long as the stream. Without it, the runtime provides memory. The values are in their wire form: [count, value].
  Ask ask{};
};

/// The values of a peer's generator function.
class Stream {
 public:
  /// Opens a stream.
  /// @param peer the peer
  /// @param function the name of the generator function
  /// @param options how many values are requested ahead, the timeout, and memory
  Stream(const Peer& peer, std::string_view function, StreamOptions options = {});
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  /// Begins the arguments; called once, before start().
  /// @param num_positional the number of positional arguments
  /// @return the message to write that many values into
  Message arguments(size_t num_positional);
  /// Begins the named arguments, if there are any; called once, after arguments().
  /// @param num_named the number of named arguments
  /// @return the message to write that many names into, each a text followed by a value
  Message named(size_t num_named);
  /// Starts the generator, once. It never blocks.
  void start();

  /// Drives the engine until the next value has arrived.
  /// @param timeout the longest wait
  /// @return whether there is a value. If not, it may still arrive, unless the stream is finished().
  bool next(std::chrono::milliseconds timeout);
  /// @return a reader of the current value, valid until the next call of next(); without a value it reads only kBroken
  rpc::ValueReader value() const noexcept;
  /// @return the current message, whose values are [count, value] and which has the tensors; empty without a value
  Received received() noexcept;

  /// @return whether the stream has ended
  bool finished() const noexcept;
  /// @return the status of a finished stream: ok if the generator has ended or was stopped, otherwise as for a call
  const Status& status() const noexcept;
  /// @return the text of the generator's error, if the generator failed
  std::string_view failure() const noexcept;
  /// @return the traceback of an error in Python; otherwise empty
  std::string_view traceback() const noexcept;
  /// Stops the generator and ends the stream.
  void stop() noexcept;

 private:
  struct State;
  // Ends the process if the stream has been moved from.
  State& state() const noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace axon::library
