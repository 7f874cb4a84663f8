// One message to many peers, written once. Like a one-way Call it can be reused, and then allocates nothing.
//
//   axon::Publication news("update");
//   for (int step = 0; step < 10; ++step) {
//     news.message().tensor(std::span<const float>(weights));
//     news.tell(workers);  // never blocks
//     news.wait(1s);
//     for (size_t i = 0; i < workers.size(); ++i) {
//       if (!news.status(i).ok()) report(workers[i], news.status(i));
//     }
//     news.open("update");
//   }
//
// One thread at a time may use it. It may be destroyed at any time: calls in flight continue without it. Then the
// memory that it references must stay valid, unless it has an Owner, and so must the objects to which its callback
// refers.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "axon/call.hpp"
#include "axon/message.hpp"
#include "axon/peer.hpp"
#include "base/status.hpp"

namespace axon::library {

/// One message to many peers.
class Publication {
 public:
  /// Opens a publication.
  /// @param function the name of the function at the peers; all calls fail if it has more than 255 bytes
  explicit Publication(std::string_view function);
  Publication(Publication&& other) noexcept;
  Publication& operator=(Publication&& other) noexcept;
  ~Publication();

  /// Opens it for another message. Timeout and callback are kept.
  /// @param function the name of the function at the peers
  void open(std::string_view function);
  /// @return the message, to be written before tell(). Memory that it references must stay valid until released().
  Message message() noexcept;
  /// Sets the time after which each of the calls fails.
  /// @param timeout by default 30 s
  void set_timeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }
  /// Sets, before tell(), a function that is called once per message, just before finished() returns true. It is called
  /// within tell() or by the thread that drives the engine, and may read the status of each call. If the publication is
  /// opened again before that, a copy of the function is called.
  /// @param callback the function
  void on_finished(std::function<void()> callback);

  /// Sends the message, once. It never blocks: calls that cannot be sent yet are queued, up to a limit per peer.
  /// @param peers the receivers
  void tell(std::span<const Peer> peers);

  /// Drives the engine until the message has been sent to all peers, or has failed.
  /// @param timeout the longest wait
  /// @return whether it is finished; if not, it continues
  bool wait(std::chrono::milliseconds timeout) noexcept;
  /// @return whether the message has been sent to all peers, or has failed
  bool finished() const noexcept;
  /// @return whether the transport is done with the message, so that the memory that it references is free
  bool released() const noexcept;
  /// Cancels the calls that have not been sent yet, with kCancelled.
  void cancel() noexcept;
  /// Returns the status of the call to one peer. A call that fails does not delay the others.
  /// @param index the position of the peer in tell()
  /// @return the status; a success before the call is finished, kInvalidArgument if there is no such peer
  const Status& status(size_t index) const noexcept;

 private:
  struct Original;
  // Ends the process if the publication has been moved from.
  Original& original() const noexcept;
  std::span<const Call> told() const noexcept { return std::span(calls_).first(num_told_); }

  Original* original_ = nullptr;  // shared with the calls in flight
  std::vector<Call> calls_;
  size_t num_told_ = 0;
  std::function<void()> callback_;  // the user's original; a copy is called
  std::chrono::milliseconds timeout_{30'000};
};

}  // namespace axon::library
