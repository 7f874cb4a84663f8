// A call of a peer, as the called function gets it.
//
//   runtime.add("add", [](axon::Invocation& invocation) {
//     invocation.answer().integer(sum_of(invocation.arguments()));
//     invocation.reply();
//   });
//
// To answer later, on any thread, move it: `queue.push(std::move(invocation))`. An invocation that is destroyed without
// an answer fails. One thread at a time may use it. Accessors are defined in every state. After reply() or fail(), or
// moved from, it has no name, arguments or caller, wants no answer and counts as cancelled. A second answer is ignored;
// writing one ends the process with a message.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "axon/message.hpp"
#include "axon/peer.hpp"

namespace axon::library {

/// A call of a peer, as the called function gets it.
class Invocation {
 public:
  explicit Invocation(void* invocation) noexcept : invocation_(invocation) {}
  Invocation(Invocation&& other) noexcept;
  Invocation& operator=(Invocation&& other) noexcept;
  ~Invocation();

  /// @return the name under which the function is registered
  std::string_view function() const noexcept;
  /// @return the arguments, valid until the invocation is answered
  Received arguments() noexcept;
  /// @return the peer that made the call
  Peer caller() const noexcept;
  /// @return whether the caller waits for an answer; false for a one-way call
  bool wants_answer() const noexcept;
  /// Returns whether there is no reason to continue. May be called on any thread.
  /// @return whether the caller has given up or is gone; always false for a one-way call
  bool is_cancelled() const noexcept;

  /// @return the answer, to be written before reply(). Memory that it references must stay valid until it has been
  ///   sent, of which only an Owner is notified. The arguments stay valid by themselves.
  Message answer();
  /// Sends the answer. Either reply() or fail() is called, once. A reply without a value is nothing(), Python's None.
  void reply() noexcept;
  /// Fails the call.
  /// @param class_name the class of the caller's error; for Python a name such as "ValueError"
  /// @param message the text of the error
  void fail(std::string_view class_name, std::string_view message) noexcept;

  /// @return whether the invocation has been answered or moved from
  bool is_answered() const noexcept { return invocation_ == nullptr; }

  // For the library itself: leaves the answer to the caller.
  void* hand_over() noexcept { return std::exchange(invocation_, nullptr); }

 private:
  friend class Next;
  // Starts the answer again, without what has been written.
  Message answer_anew();

  void* invocation_;  // belongs to the runtime; null once answered or moved from
  bool has_answer_ = false;
};

/// A registered function, called by the thread that drives the engine. Several may run at a time, on different threads.
/// It must not wait for calls. An exception fails the call with "RuntimeError".
using Handler = std::function<void(Invocation& invocation)>;

}  // namespace axon::library
