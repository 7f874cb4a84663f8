// One message to many peers, written once. As a Call that is told, it may be used again and again, and then allocates
// nothing.
//
//   axon::Publication news("update");
//   for (…) {
//     news.message().tensor(std::span<const float>(weights));
//     news.tell(workers);                                        // never blocks
//     news.wait(1s);
//     for (size_t i = 0; i < workers.size(); ++i) if (!news.status(i).ok()) …
//     news.open("update");
//   }
//
// Used by one thread at a time. It may be destroyed at any time: what is under way goes on without it, and what it has
// borrowed has to stay, unless it has an Owner, as has what its callback refers to.
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

class Publication {
 public:
  // No function has a name of more than 255 bytes: nobody gets that.
  explicit Publication(std::string_view function);
  Publication(Publication&& other) noexcept;
  Publication& operator=(Publication&& other) noexcept;
  ~Publication();

  // For another message. Timeout and callback stay.
  void open(std::string_view function);
  // To be filled in before tell(), which is called once. What it borrows has to stay until released().
  Message message() noexcept;
  // Of each, as a call's.
  void set_timeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }
  // To be set before tell(). Called once each time just before finished() says so, by whichever thread drives, or
  // within tell(): the status of each is there. A copy of it where the publication is opened again before.
  void on_finished(std::function<void()> callback);

  // Never blocks: what cannot be sent yet waits, up to a bound for each peer.
  void tell(std::span<const Peer> peers);

  // Drives until it has left for all, or failed; false after `timeout`, when it still goes on.
  bool wait(std::chrono::milliseconds timeout) noexcept;
  bool finished() const noexcept;
  // Nothing of it moves any more.
  bool released() const noexcept;
  // Those that it has not left for yet are not told: kCancelled.
  void cancel() noexcept;
  // Of the peer that was told in this place; a success before that is finished, kInvalidArgument where there is none.
  // One that fails holds up no other.
  const Status& status(size_t index) const noexcept;

 private:
  struct Original;
  // Ends the process where it has been moved from.
  Original& original() const noexcept;
  std::span<const Call> told() const noexcept { return std::span(calls_).first(num_told_); }

  Original* original_ = nullptr;  // shared with the calls that are under way
  std::vector<Call> calls_;
  size_t num_told_ = 0;
  std::function<void()> callback_;  // as it was given: another copy is called
  std::chrono::milliseconds timeout_{30'000};
};

}  // namespace axon::library
