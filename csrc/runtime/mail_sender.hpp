// The messages to one mailbox of a peer's: numbered, so that they are taken in order, and held back here, payloads and
// all, while the mailbox has no room.
//
// One message is always allowed at the mailbox, which does not answer it before it has room: it asks for that with its
// payload. The answer grants further ones, each a place there that is kept free; no more are granted than wait here, as
// the messages say. So a mailbox holds what its capacity allows and one message of each sender.
//
// Each message says below which number all have found their end, accepted or not, so that none of those is waited for.
// Where one fails, and where what was granted is not needed any more, the peer is told that by itself.
//
// Owned by its connection; holder of the progress token only, but for write_header().
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/intrusive_list.hpp"
#include "runtime/call.hpp"

namespace axon {

class Connection;

// What names of mailboxes' functions begin with; their tag follows.
inline constexpr std::string_view kMailboxes = "axon.mailbox:";

class MailSender {
 public:
  MailSender(Connection& connection, std::string_view tag) : connection_(connection), tag_(tag) {}
  MailSender(const MailSender&) = delete;
  MailSender& operator=(const MailSender&) = delete;

  // Of an opened message, whose one value, and nothing() behind it, follow. Filled in when it leaves.
  static void write_header(ByteVector& bytes);

  void begin(Call& message) noexcept;
  // The message has found its end here. `is_answered`: at the peer, too, or it has never been there.
  void on_end(Call& message, bool is_answered) noexcept;
  // The peer has answered a message that had found its end here before, with these values.
  void on_late_answer(int64_t turn, std::span<const std::byte> values) noexcept;
  IntrusiveList<Call>& waiting() noexcept { return waiting_; }

 private:
  bool may_leave() const noexcept { return num_granted_ != 0 || asking_ < 0; }
  void launch_those_due() noexcept;
  void take_turn(Call& message) noexcept;
  void receive_grant(std::span<const std::byte> values) noexcept;
  void settle() noexcept;
  void give_back_unused() noexcept;
  void tell_if_needed() noexcept;

  Connection& connection_;
  const std::string tag_;
  IntrusiveList<Call> waiting_;  // until they may leave, in order
  size_t num_waiting_ = 0;
  size_t num_granted_ = 0;  // and not used
  int64_t asking_ = -1;     // the message that was not granted and is not answered; −1: none
  int64_t num_sent_ = 0;
  int64_t settled_ = 0;     // all below have found their end
  std::set<int64_t> done_;  // so have these, above
  int64_t failed_ = 0;      // the latest that will not come, and one more
  int64_t told_ = 0;        // what the peer has heard of, by itself
  bool is_telling_ = false;
  bool is_launching_ = false;
};

}  // namespace axon
