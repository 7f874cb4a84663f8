// Messages that arrive before their receiver exists: their keys have been given out, and the inboxes are still to come.
//
// A key is expected from the moment at which it is given out until its owner takes its messages, or until it is
// retired. In a series of keys, which have their upper half in common, a key is expected once a message with it
// arrives. Of these keys only the latest kMostOfSeries count. The messages of all keys together have a bound; further
// ones are dropped.
//
// Owned by the Messenger; progress owner only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "base/intrusive_list.hpp"
#include "base/size_class_pool.hpp"
#include "messaging/inbox.hpp"
#include "transport/transport.hpp"

namespace axon::messaging {

class EarlyMessages {
 public:
  EarlyMessages(transport::Transport& transport, SizeClassPool& pool) noexcept : transport_(transport), pool_(pool) {}
  ~EarlyMessages() { discard_all(); }
  EarlyMessages(const EarlyMessages&) = delete;
  EarlyMessages& operator=(const EarlyMessages&) = delete;

  void expect(uint64_t key);
  bool expects(uint64_t key) const noexcept { return expected_.contains(key); }
  // Drops the messages for this key. Returns whether it was expected.
  bool retire(uint64_t key) noexcept;
  void expect_series(uint32_t upper_half) { series_[upper_half]; }
  // Calls `retired` with each of the keys that are no longer expected.
  template <typename Retired>
  void retire_series(uint32_t upper_half, Retired retired);

  // Keeps a message, or drops it where the bound is reached. Returns false if its key is not expected.
  bool hold(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  // Delivers the messages for a key in order. It is no longer expected. Returns true if some could not be kept.
  template <typename Deliver>
  bool hand_out(uint64_t key, Deliver deliver);

  void discard_all() noexcept;
  uint64_t num_dropped() const noexcept { return num_dropped_; }
  void drop(const transport::Payload& payload) noexcept;

  // Senders run out of credit before they reach it, as for an inbox.
  static constexpr size_t kMostBytes = Inbox::kMostUnexpectedBytes;
  static constexpr size_t kMostOfSeries = 16;

 private:
  struct Early {
    IntrusiveList<Unexpected> messages;
    bool overflowed = false;  // some could not be kept
  };
  // The keys that have messages and are not expected otherwise, oldest first.
  using Series = std::deque<uint64_t>;

  Early* find(uint64_t key) noexcept;
  void let_go(Unexpected& message) noexcept;
  void discard(Early& early) noexcept;

  transport::Transport& transport_;
  SizeClassPool& pool_;
  std::unordered_map<uint64_t, Early> expected_;  // by key
  std::unordered_map<uint32_t, Series> series_;   // by the upper half of their keys
  size_t num_bytes_ = 0;
  uint64_t num_dropped_ = 0;
};

template <typename Retired>
void EarlyMessages::retire_series(uint32_t upper_half, Retired retired) {
  const auto found = series_.find(upper_half);
  if (found == series_.end()) return;
  for (const uint64_t key : found->second) {
    if (retire(key)) retired(key);
  }
  series_.erase(found);
}

template <typename Deliver>
bool EarlyMessages::hand_out(uint64_t key, Deliver deliver) {
  const auto found = expected_.find(key);
  if (found == expected_.end()) return false;
  Early& early = found->second;
  while (Unexpected* message = early.messages.front()) {
    deliver(*message);
    let_go(*message);
  }
  const bool overflowed = early.overflowed;
  expected_.erase(found);
  return overflowed;
}

}  // namespace axon::messaging
