// The sender's end of one mailbox of a peer. It numbers the messages, so that the mailbox takes them in order, and
// holds them back, payloads and all, while the mailbox has no room.
//
// A message may leave without a grant while no answer is outstanding: with its payload, it is the request for room. The
// mailbox answers it once it has room. The answer grants further messages; each grant is a slot that the mailbox keeps
// free. A message says how many wait here, and the mailbox grants no more than that. So a mailbox holds at most its
// capacity and one message of each sender. If such a message left while another one's answer was on its way, it would
// take the slot that this answer grants.
//
// Each message also carries the number below which all messages are settled, that is, accepted or given up. So the
// mailbox does not wait for any of those. If a message fails, or if grants are left over, the sender tells the mailbox
// by a one-way call of its own.
//
// Owned by its connection; progress owner only, except for write_header().
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/intrusive_list.hpp"
#include "rpc/core/call.hpp"

namespace axon::rpc {

class Connection;

// Prefix of the names of mailboxes' functions; the tag follows.
inline constexpr std::string_view kMailboxes = "axon.mailbox:";

class MailSender {
 public:
  MailSender(Connection& connection, std::string_view tag) : connection_(connection), tag_(tag) {}
  MailSender(const MailSender&) = delete;
  MailSender& operator=(const MailSender&) = delete;

  // Writes the header of an opened message. The caller then writes the message's one value, followed by nothing(). The
  // numbers in the header are filled in when the message leaves.
  static void write_header(ByteVector& bytes);

  void begin(Call& message) noexcept;
  // The call that carries the message has ended. `is_answered`: the peer answered it, or never received it.
  void on_end(Call& message, bool is_answered) noexcept;
  // The peer answered a message whose call had already ended here.
  void on_late_answer(std::span<const std::byte> values) noexcept;
  IntrusiveList<Call>& waiting() noexcept { return waiting_; }

 private:
  bool may_leave() const noexcept { return num_granted_ != 0 || num_unanswered_ == 0; }
  void launch_those_due() noexcept;
  void take_turn(Call& message) noexcept;
  void receive_grant(std::span<const std::byte> values) noexcept;
  void settle() noexcept;
  void give_back_unused() noexcept;
  void tell_if_needed() noexcept;

  Connection& connection_;
  const std::string tag_;
  IntrusiveList<Call> waiting_;  // messages that may not leave yet, in order
  size_t num_waiting_ = 0;
  size_t num_granted_ = 0;     // grants that no message has used yet
  size_t num_unanswered_ = 0;  // numbered messages without an answer, given up here or not
  int64_t num_sent_ = 0;
  int64_t settled_ = 0;     // all messages below this number have ended
  std::set<int64_t> done_;  // messages above it that have ended
  int64_t failed_ = 0;      // one more than the number of the latest message that will not arrive
  int64_t told_ = 0;        // the latest value of settled_ that the peer was told by a separate call
  bool is_telling_ = false;
  bool is_launching_ = false;
};

}  // namespace axon::rpc
