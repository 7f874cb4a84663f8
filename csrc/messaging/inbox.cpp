#include "messaging/inbox.hpp"

#include <algorithm>

#include "base/wrapping.hpp"
#include "messaging/exchange.hpp"

namespace axon::messaging {

static transport::OperationHeader header_of(const Unexpected& held) noexcept {
  return held.header.as<transport::OperationHeader>();
}

// Both are of messages of one source and tag.
static bool is_same_part(const transport::Fingerprint& left, const transport::Fingerprint& right) noexcept {
  return left.root == right.root && (!left.is_later_part() || left.num_elements == right.num_elements);
}

static bool is_replay(const transport::OperationHeader& header) noexcept {
  return header.fingerprint.operation != transport::OperationKind::kPointToPoint && header.slot >= kFirstReplaySlot;
}

static bool is_for(const Request& receive, const transport::OperationHeader& header) noexcept {
  const transport::OperationHeader& expected = receive.header;
  const bool from_there = expected.source == header.source || expected.source == kAnySource;
  if (!from_there || expected.slot != header.slot) return false;
  if (header.fingerprint.operation != transport::OperationKind::kPointToPoint) {
    return expected.sequence == header.sequence;
  }
  return is_same_part(expected.fingerprint, header.fingerprint);
}

static size_t most_unexpected_bytes(const Allowance& of_each, size_t num_ranks) noexcept {
  const size_t most_of_each = of_each.num_bytes + of_each.num_messages * sizeof(Unexpected);
  return std::max(Inbox::kMostUnexpectedBytes, 2 * most_of_each * num_ranks);
}

Inbox::Inbox(transport::Transport& transport, SizeClassPool& pool, const Team& team, InboxListener& listener)
    : Inbox(transport, pool, team, listener, Allowance::in_group_of(team.size())) {}

Inbox::Inbox(transport::Transport& transport, SizeClassPool& pool, const Team& team, InboxListener& listener,
             Allowance allowance)
    : transport_(transport),
      pool_(pool),
      team_(team),
      listener_(listener),
      flow_(transport, team, allowance),
      most_unexpected_bytes_(most_unexpected_bytes(allowance, team.peers.size())),
      numbers_(team.peers.size()),
      departures_(team.peers.size()) {}

Inbox::~Inbox() {
  if (num_forks() != born_after_) return;  // in a forked child, the connections are its parent's
  const Status left(ErrorCode::kAborted, "the receiver has left the group without receiving it");
  const auto discard_all = [&](IntrusiveList<Unexpected>& list) {
    while (Unexpected* message = list.front()) {
      if (message->payload.rendezvous != nullptr) transport_.refuse(message->payload.rendezvous, left);
      release_copy(pool_, *message);
    }
  };
  for (auto& bucket : unexpected_) discard_all(bucket);
  discard_all(unexpected_point_to_point_);
  discard_all(early_);
}

void Inbox::enter(uint32_t sequence, const transport::Fingerprint& fingerprint) noexcept {
  entered_[sequence % kNumEntered] = {sequence, fingerprint};
  if (is_later(sequence, latest_entered_)) latest_entered_ = sequence;
  Unexpected* differing = unexpected_[bucket_of(sequence)].find([&](const Unexpected& message) {
    const transport::OperationHeader header = header_of(message);
    return !is_replay(header) && header.sequence == sequence && !is_same_call(header.fingerprint, fingerprint);
  });
  if (differing != nullptr) (void)listener_.on_mismatch(header_of(*differing), fingerprint);
}

void Inbox::leave(uint32_t sequence) noexcept {
  IntrusiveList<Unexpected>& list = unexpected_[bucket_of(sequence)];
  const auto is_left = [&](const Unexpected& message) {
    const transport::OperationHeader header = header_of(message);
    return !is_replay(header) && header.sequence == sequence;
  };
  while (Unexpected* message = list.find(is_left)) {
    let_go(*message);
    refuse(header_of(*message), message->payload);
    release_copy(pool_, *message);
  }
  if (has_withheld_) [[unlikely]]
    relieve_again();
}

bool Inbox::post(Request& receive) noexcept {
  const bool point_to_point = receive.header.fingerprint.operation == transport::OperationKind::kPointToPoint;
  const size_t bucket = bucket_of(receive.header.sequence);
  if (serve_from(point_to_point ? unexpected_point_to_point_ : unexpected_[bucket], receive)) return false;
  (point_to_point ? posted_point_to_point_ : posted_[bucket]).push_back(receive);
  if (num_unexpected_bytes_ != 0) [[unlikely]]
    relieve(receive.header.source);
  return true;
}

void Inbox::on_message(const transport::OperationHeader& header, const transport::Payload& payload) noexcept {
  if (header.fingerprint.operation == transport::OperationKind::kPointToPoint) {
    on_point_to_point(header, payload);
  } else {
    on_collective(header, payload);
  }
}

void Inbox::on_collective(const transport::OperationHeader& header, const transport::Payload& payload) noexcept {
  const bool is_numbered = !is_replay(header);
  if (const transport::Fingerprint* const ours = is_numbered ? differing(header) : nullptr) [[unlikely]]
    return drop(header, payload, listener_.on_mismatch(header, *ours));
  const size_t bucket = bucket_of(header.sequence);
  Request* receive = posted_[bucket].find([&](const Request& posted) { return is_for(posted, header); });
  const bool entered = is_numbered && !is_later(header.sequence, latest_entered_);
  if (receive == nullptr && entered && listener_.has_ended(header.sequence)) return refuse(header, payload);
  flow_.note_latest(header);
  if (receive == nullptr) return hold(unexpected_[bucket], header, payload);
  hand_over(*receive, header, payload);
}

// Returns the call that this rank has entered at the message's sequence number if it differs, or else null. Collectives
// that have not been entered are compared in enter(); those that are forgotten, by their receives, if there are any.
const transport::Fingerprint* Inbox::differing(const transport::OperationHeader& header) const noexcept {
  const Entered& ours = entered_[header.sequence % kNumEntered];
  const bool is_known = ours.sequence == header.sequence && ours.fingerprint.operation != transport::OperationKind{};
  return !is_known || is_same_call(ours.fingerprint, header.fingerprint) ? nullptr : &ours.fingerprint;
}

void Inbox::on_point_to_point(const transport::OperationHeader& header, const transport::Payload& payload) noexcept {
  uint32_t& next = numbers_.writable(header.source).arrived;
  if (header.sequence != next && is_repeated(header)) return refuse_repeated(payload);
  flow_.note_latest(header);
  if (header.sequence != next) return hold(early_, header, payload);
  ++next;
  serve_point_to_point(header, payload);
  if (!early_.empty()) serve_early(header.source);
  if (is_spent(static_cast<int>(header.source))) fail_hopeless();
}

void Inbox::depart(uint32_t source, uint32_t num_sent, Status reason) noexcept {
  if (!departures_[source].reason.ok()) return;
  departures_.writable(source) = {.reason = std::move(reason), .num_sent = num_sent};
  fail_hopeless();
}

void Inbox::on_credit(const transport::CreditHeader& credit) noexcept {
  if (credit.kind == transport::MessageKind::kCredit) return flow_.on_credit(credit);
  depart(credit.source, credit.num_sent,
         Status(ErrorCode::kAborted,
                "rank " + std::to_string(credit.source) + " has left the group and no longer receives messages"));
  flow_.fail_waiting(credit.source, departures_[credit.source].reason);
}

// Fails receives for which no rank is left that could send.
void Inbox::fail_hopeless() noexcept {
  const auto is_hopeless = [](const Request& posted) { return !posted.exchange->hopelessness_of(posted).ok(); };
  while (Request* receive = posted_point_to_point_.find(is_hopeless)) {
    receive->exchange->fail(receive->exchange->hopelessness_of(*receive));
  }
}

bool Inbox::is_repeated(const transport::OperationHeader& header) noexcept {
  return is_later(numbers_[header.source].arrived, header.sequence) || early_.find([&](const Unexpected& held) {
    const transport::OperationHeader earlier = header_of(held);
    return earlier.source == header.source && earlier.sequence == header.sequence;
  }) != nullptr;
}

static Status failed_receive() {
  return {ErrorCode::kAborted, "the receive of the message has failed"};
}

bool Inbox::has_failed(const transport::OperationHeader& header) const noexcept {
  return header.fingerprint.is_later_part() && std::ranges::any_of(failed_messages_, [&](const FailedMessage& failed) {
           return failed.source == header.source && failed.number == header.fingerprint.num_elements;
         });
}

void Inbox::refuse_later_parts(uint32_t source, uint32_t number) noexcept {
  failed_messages_[next_failed_++ % kNumFailed] = {source, number};
  const auto is_of_it = [&](const Unexpected& held) { return has_failed(header_of(held)); };
  while (Unexpected* message = unexpected_point_to_point_.find(is_of_it)) {
    let_go(*message);
    drop(header_of(*message), message->payload, failed_receive());
    release_copy(pool_, *message);
  }
}

void Inbox::serve_point_to_point(const transport::OperationHeader& header, const transport::Payload& payload) noexcept {
  Request* receive = posted_point_to_point_.find([&](const Request& posted) { return is_for(posted, header); });
  if (receive == nullptr && has_failed(header)) return drop(header, payload, failed_receive());
  if (receive == nullptr) return hold(unexpected_point_to_point_, header, payload);
  hand_over(*receive, header, payload);
}

// The gap before some overtaking messages of this source may just have been filled.
void Inbox::serve_early(uint32_t source) noexcept {
  const auto is_next = [&](const Unexpected& message) {
    const transport::OperationHeader header = header_of(message);
    return header.source == source && header.sequence == numbers_[source].arrived;
  };
  while (Unexpected* message = early_.find(is_next)) {
    ++numbers_.writable(source).arrived;
    let_go(*message);
    serve_point_to_point(header_of(*message), message->payload);
    release_copy(pool_, *message);
  }
  if (has_withheld_) [[unlikely]]
    relieve_again();
}

void Inbox::hold(IntrusiveList<Unexpected>& list, const transport::OperationHeader& header,
                 const transport::Payload& payload) noexcept {
  if (num_unexpected_bytes_ > most_unexpected_bytes_) {
    Status why(ErrorCode::kResourceExhausted,
               "more than " + std::to_string(most_unexpected_bytes_ >> 20) +
                   " MiB have arrived without a matching receive, the latest from rank " +
                   std::to_string(header.source));
    drop(header, payload, why);
    return overflow(std::move(why));
  }
  Unexpected& message = hold_copy(pool_, header, payload);
  list.push_back(message);
  num_unexpected_bytes_ += message.num_bytes_held();
  flow_.note_held(header.source);
  if (flow_.has_spent_all(header.source) && has_receive_from(header.source)) relieve(header.source);
}

void Inbox::let_go(Unexpected& message) noexcept {
  message.unlink();
  num_unexpected_bytes_ -= message.num_bytes_held();
  flow_.note_released(header_of(message).source);
}

// A payload that waits at its sender takes a rendezvous, which returns its own credit.
void Inbox::hand_over(Request& receive, const transport::OperationHeader& header,
                      const transport::Payload& payload) noexcept {
  static_cast<InboxNode&>(receive).unlink();
  if (is_replay(header) && !is_same_call(receive.header.fingerprint, header.fingerprint)) [[unlikely]] {
    const transport::Fingerprint ours = receive.header.fingerprint;  // the receive fails with the group
    return drop(header, payload, listener_.on_mismatch(header, ours));
  }
  if (payload.rendezvous == nullptr) flow_.note_consumed(header.source, payload.num_bytes);
  receive.exchange->deliver(receive, header, payload);
}

// Called for a receive that no held message matches. Its message may wait at its sender for credit that only receives
// of the held messages would return. While these take so much memory that the group is at risk, nothing is granted. The
// senders then wait until receives of other messages have made room, or their operations time out.
void Inbox::relieve(uint32_t source) noexcept {
  if (num_unexpected_bytes_ > most_unexpected_bytes_ / 2) {
    has_withheld_ = true;
    return;
  }
  if (source != kAnySource) return flow_.has_spent_all(source) ? flow_.advance(source) : void();
  for (uint32_t each = 0; each < team_.peers.size(); ++each) relieve(each);
}

// Called when there is room again: the receives whose senders were granted nothing still wait, and do not ask again.
void Inbox::relieve_again() noexcept {
  if (num_unexpected_bytes_ > most_unexpected_bytes_ / 2) return;
  has_withheld_ = false;
  for (uint32_t source = 0; source < team_.peers.size(); ++source) {
    if (flow_.has_spent_all(source) && has_receive_from(source)) flow_.advance(source);
  }
}

bool Inbox::has_receive_from(uint32_t source) noexcept {
  const auto takes = [&](const Request& posted) {
    return posted.header.source == source || posted.header.source == kAnySource;
  };
  return posted_point_to_point_.find(takes) != nullptr ||
         std::ranges::any_of(posted_, [&](auto& bucket) { return bucket.find(takes) != nullptr; });
}

bool Inbox::serve_from(IntrusiveList<Unexpected>& list, Request& receive) noexcept {
  Unexpected* message = list.find([&](const Unexpected& held) { return is_for(receive, header_of(held)); });
  if (message == nullptr) return false;
  let_go(*message);
  hand_over(receive, header_of(*message), message->payload);
  release_copy(pool_, *message);
  if (has_withheld_) [[unlikely]]
    relieve_again();
  return true;
}

static Status repeated_or_late() {
  return {ErrorCode::kAborted, "it was sent twice, or for a collective that has ended"};
}

void Inbox::refuse(const transport::OperationHeader& header, const transport::Payload& payload) noexcept {
  ++num_refused_;
  drop(header, payload, repeated_or_late());
}

// Returns no credit: a repeated message has returned it already.
void Inbox::refuse_repeated(const transport::Payload& payload) noexcept {
  ++num_refused_;
  if (payload.rendezvous != nullptr) transport_.refuse(payload.rendezvous, repeated_or_late());
}

void Inbox::drop(const transport::OperationHeader& header, const transport::Payload& payload,
                 const Status& why) noexcept {
  if (payload.rendezvous != nullptr) return transport_.refuse(payload.rendezvous, why);
  flow_.note_consumed(header.source, payload.num_bytes);
}

}  // namespace axon::messaging
