#include "rpc/core/mailboxes/mail_sender.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "rpc/core/connection.hpp"

namespace axon::rpc {

// The call that tells the peer what is settled has no timeout of its own, since the mailbox waits for it.
static constexpr std::chrono::hours kSettledTimeout{24 * 365};
// Marks that call, which is not one of the numbered messages.
static constexpr int64_t kSettledTurn = -2;

namespace {

// The MessagePack encoding, up to the value, of [[number, how many earlier messages may still come, how many wait here,
// value], nil]. Each integer has the width of its field, however small it is, so that the header's length is fixed. Big
// endian.
struct __attribute__((packed)) EncodedMailHeader {
  uint8_t both = 0x92;
  uint8_t positional = 0x94;
  uint8_t code_of_number = 0xcf;
  uint64_t number = 0;
  uint8_t code_of_unsettled = 0xce;
  uint32_t num_unsettled = 0;
  uint8_t code_of_waiting = 0xcd;
  uint16_t num_waiting = 0;
};
static_assert(sizeof(EncodedMailHeader) == 19);

}  // namespace

void MailSender::write_header(ByteVector& bytes) {
  static constexpr EncodedMailHeader kEmpty;
  const auto header = std::as_bytes(std::span(&kEmpty, 1));
  bytes.insert(bytes.end(), header.begin(), header.end());
}

void MailSender::begin(Call& message) noexcept {
  const bool waits = !may_leave() || !waiting_.empty();
  if (waits && !connection_.has_room(message)) return;
  message.mail_sender_ = this;
  message.turn_ = -1;
  waiting_.push_back(message);
  ++num_waiting_;
  ++connection_.num_waiting_;
  launch_those_due();
}

// A call that fails as it is launched ends in on_end(), which calls this function again.
void MailSender::launch_those_due() noexcept {
  if (std::exchange(is_launching_, true)) return;
  while (may_leave() && connection_.may_call()) {
    Call* const message = waiting_.pop_front();
    if (message == nullptr) break;
    --num_waiting_;
    --connection_.num_waiting_;
    take_turn(*message);
    connection_.leave(*message);
  }
  is_launching_ = false;
}

void MailSender::take_turn(Call& message) noexcept {
  message.turn_ = num_sent_++;
  ++num_unanswered_;
  if (num_granted_ != 0) --num_granted_;
  EncodedMailHeader header;
  header.number = __builtin_bswap64(static_cast<uint64_t>(message.turn_));
  header.num_unsettled = __builtin_bswap32(static_cast<uint32_t>(message.turn_ - settled_));
  header.num_waiting = __builtin_bswap16(static_cast<uint16_t>(std::min<size_t>(num_waiting_, UINT16_MAX)));
  std::memcpy(message.request.values_begin(), &header, sizeof header);
}

void MailSender::on_end(Call& message, bool is_answered) noexcept {
  const int64_t turn = std::exchange(message.turn_, -1);
  if (turn == kSettledTurn) {
    is_telling_ = false;
    return tell_if_needed();
  }
  if (turn < 0) {
    --num_waiting_;
    return give_back_unused();
  }
  const bool is_accepted = message.status().ok();
  if (message.answered_ && !message.failed_there_) receive_grant(message.reply_.values());
  if (!is_accepted) failed_ = std::max(failed_, turn + 1);
  num_unanswered_ -= is_answered ? 1 : 0;
  done_.insert(turn);
  settle();
  launch_those_due();
  give_back_unused();
}

void MailSender::on_late_answer(std::span<const std::byte> values) noexcept {
  receive_grant(values);
  --num_unanswered_;
  launch_those_due();
  give_back_unused();
}

void MailSender::receive_grant(std::span<const std::byte> values) noexcept {
  const Value granted = ValueReader(values).next();
  if (granted.kind != Value::Kind::kInteger || granted.integer < 0) return;
  num_granted_ += static_cast<size_t>(std::min<int64_t>(granted.integer, UINT16_MAX));
}

void MailSender::settle() noexcept {
  while (!done_.empty() && *done_.begin() == settled_) {
    done_.erase(done_.begin());
    ++settled_;
  }
  tell_if_needed();
}

// The messages that the grants were meant for have been given up. Telling the mailbox that their numbers will not come
// frees the slots that it keeps for them.
void MailSender::give_back_unused() noexcept {
  if (num_granted_ == 0 || !waiting_.empty()) return;
  for (; num_granted_ != 0; --num_granted_) done_.insert(num_sent_++);
  failed_ = num_sent_;
  settle();
}

void MailSender::tell_if_needed() noexcept {
  if (told_ >= std::min(settled_, failed_) || is_telling_ || !connection_.failure_.ok()) return;
  is_telling_ = true;
  told_ = settled_;
  auto* message = new Call;
  message->request.open(kSettled);
  ValueWriter writer(message->request.bytes());
  writer.array(2);
  writer.array(2);
  writer.text(tag_);
  writer.integer(settled_);
  writer.nothing();
  message->request.seal();
  message->answer = Call::Answer::kNone;
  message->timeout = kSettledTimeout;
  message->mail_sender_ = this;
  message->turn_ = kSettledTurn;
  connection_.start(*message);
  message->release();
}

}  // namespace axon::rpc
