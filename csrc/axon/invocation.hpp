// A call that a peer has made, in the hands of the function that it is for.
//
//   runtime.add("add", [](axon::Invocation& invocation) {
//     …  invocation.answer().integer(sum);  invocation.reply();
//   });
//
// To answer later, on any thread, move it away: `queue.push(std::move(invocation))`. One that is dropped without an
// answer fails. Used by one thread at a time. Accessors are defined in every state: after reply() or fail(), or moved
// from, it has no name, arguments or caller, wants no answer and counts as cancelled. A second answer is ignored; to
// write one ends the process with a message.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "axon/message.hpp"
#include "axon/peer.hpp"

namespace axon::library {

class Invocation {
 public:
  explicit Invocation(void* invocation) noexcept : invocation_(invocation) {}
  Invocation(Invocation&& other) noexcept;
  Invocation& operator=(Invocation&& other) noexcept;
  ~Invocation();

  std::string_view function() const noexcept;
  Received arguments() noexcept;
  Peer caller() const noexcept;
  // Nobody hears of the answer to a call that was only told.
  bool wants_answer() const noexcept;
  // The caller has given up, or is gone: there is no need to go on. Never of what was only told. Any thread.
  bool is_cancelled() const noexcept;

  // To be filled in before reply(). What it borrows has to stay until it has left, of which only an Owner hears; the
  // arguments stay by themselves.
  Message answer();
  // Either of these, once. A reply without a value is nothing(), Python's None. The caller gets an error of this class:
  // a name of Python's ("ValueError") for Python.
  void reply() noexcept;
  void fail(std::string_view class_name, std::string_view message) noexcept;

  bool is_answered() const noexcept { return invocation_ == nullptr; }

 private:
  friend class Next;
  // Without what has been written.
  Message answer_anew();

  void* invocation_;  // of the runtime's; null once answered or moved away
  bool has_answer_ = false;
};

// Called by whichever thread drives, any number at a time on different threads; not to wait there for calls. An
// exception becomes a failure ("RuntimeError").
using Handler = std::function<void(Invocation& invocation)>;

}  // namespace axon::library
