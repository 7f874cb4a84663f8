#include "axon/sent.hpp"

#include <algorithm>
#include <utility>

#include "axon/call.hpp"
#include "axon/mailbox_state.hpp"

namespace axon::library {

// The word of what is settled waits for its place as long as it takes: others wait for it.
static constexpr std::chrono::hours kLongestWord{24 * 365};

Sent::Sent(Peer peer, std::string_view tag) : peer_(std::move(peer)), tag_(tag), function_(std::string(kPut) + tag_) {}

Sent::Turn Sent::next() noexcept {
  const std::lock_guard lock(mutex_);
  return {num_sent_++, settled_};
}

void Sent::on_end(int64_t number, const Status& status) noexcept {
  {
    const std::lock_guard lock(mutex_);
    done_.insert(number);
    while (!done_.empty() && *done_.begin() == settled_) {
      done_.erase(done_.begin());
      ++settled_;
    }
    if (!status.ok()) failed_ = std::max(failed_, number + 1);
  }
  tell_if_waited_for();
}

void Sent::tell_if_waited_for() {
  int64_t settled = 0;
  {
    const std::lock_guard lock(mutex_);
    settled = settled_;
    const bool is_waited_for = told_ < std::min(settled, failed_) && settled < num_sent_;
    if (!is_waited_for || std::exchange(is_telling_, true)) return;
  }
  Call word(peer_, kSettled);
  Message message = word.request();
  message.array(2);
  message.array(2);
  message.text(tag_);
  message.integer(settled);
  message.nothing();
  word.set_timeout(kLongestWord);
  word.report_to(shared_from_this(), settled, &Sent::on_told);
  word.tell();
}

void Sent::on_told(int64_t settled, const Status& status) noexcept {
  {
    const std::lock_guard lock(mutex_);
    is_telling_ = false;
    if (!status.ok()) return;  // the connection has ended
    told_ = settled;
  }
  tell_if_waited_for();
}

}  // namespace axon::library
