// The values of a generator function at a peer, of Python's or C++'s, in order.
//
//   axon::Stream batches(server, "batches", {.ahead = 4});
//   batches.arguments(1).integer(epoch);                          // as many positional arguments
//   axon::Message named = batches.named(1);                       // and named ones, where there are any
//   named.text("shuffle");  named.boolean(true);
//   batches.start();                                              // never blocks
//   while (batches.next(10s)) use(batches.received().tensor(0));
//   if (batches.finished() && batches.status().ok()) …            // the generator is through
//
// Used by one thread at a time. Ends by itself with the generator, and with the first error; stop(), or leaving its
// scope, ends it before. Accessors are defined in every state: one that has been moved from is finished, with a status
// of kInvalidArgument; to write or start it ends the process with a message.
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

struct StreamOptions {
  size_t ahead = 16;                          // values that are asked for before they are used; no more are made
  std::chrono::milliseconds timeout{30'000};  // of each
  // Where their tensors go, several on their way at a time, for as long as the stream lives; none: in host buffers. The
  // values are as they travel: [count, value].
  Ask ask{};
};

class Stream {
 public:
  Stream(const Peer& peer, std::string_view function, StreamOptions options = {});
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // To be filled in with so many values before start(), each called once.
  Message arguments(size_t num_positional);
  // Behind arguments(), which is called in any case: with so many names, each a text, and a value after each.
  Message named(size_t num_named);
  void start();

  // Drives until the next value is there. False after `timeout`, when it may still come, or if finished().
  bool next(std::chrono::milliseconds timeout);
  // Once next() has been true, until it is called again: the value; its tensors (what else has come: [count, value]).
  // Otherwise all that is read is kBroken, and there are no tensors.
  rpc::ValueReader value() const noexcept;
  Received received() noexcept;

  bool finished() const noexcept;
  // Once finished: ok if the generator is through, or was stopped; else as a call's.
  const Status& status() const noexcept;
  // What the generator itself has said, if it has failed.
  std::string_view failure() const noexcept;
  // Where that was in Python; empty elsewhere.
  std::string_view traceback() const noexcept;
  // The generator makes no more values, and these end.
  void stop() noexcept;

 private:
  struct State;
  // Ends the process where it has been moved from.
  State& state() const noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace axon::library
