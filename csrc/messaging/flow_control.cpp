#include "messaging/flow_control.hpp"

#include <algorithm>
#include <utility>

#include "messaging/exchange.hpp"

namespace axon::messaging {

// Bounds for all other ranks together, then for one of them. 4 MiB are 64 of the largest eager messages. That is more
// than what is on its way to a rank of this host or of another one while it receives (100 Gb/s times 100 µs: 1.2 MiB).
static constexpr uint32_t kBytesOfAll = uint32_t{64} << 20;
static constexpr uint32_t kFewestBytes = uint32_t{128} << 10;
static constexpr uint32_t kMostBytes = uint32_t{4} << 20;
static constexpr uint32_t kMessagesOfAll = uint32_t{1} << 18;
static constexpr uint32_t kFewestMessages = 256;
static constexpr uint32_t kMostMessages = uint32_t{1} << 14;
// Ranks to which credit is due at once; more take an allocation.
static constexpr size_t kUsuallyDue = 64;
// Larger counts are clamped, which keeps all sums far from their types' bounds.
static constexpr int32_t kMostCredit = 1 << 28;

Allowance Allowance::in_group_of(int num_ranks) noexcept {
  const auto num_others = static_cast<uint32_t>(std::max(num_ranks - 1, 1));
  return {.num_messages = std::clamp(kMessagesOfAll / num_others, kFewestMessages, kMostMessages),
          .num_bytes = std::clamp(kBytesOfAll / num_others, kFewestBytes, kMostBytes)};
}

FlowControl::FlowControl(transport::Transport& transport, const Team& team, Allowance allowance)
    : transport_(transport),
      team_(team),
      allowance_(allowance),
      largest_eager_(transport.largest_eager()),
      num_messages_to_return_(static_cast<int32_t>(std::max(allowance.num_messages / 2, 1U))),
      num_bytes_to_return_(std::max(allowance.num_bytes / 2, 1U)),
      ranks_(team.peers.size(), {.latest = {},
                                 .num_messages_left = static_cast<int32_t>(allowance.num_messages),
                                 .num_bytes_left = static_cast<int32_t>(allowance.num_bytes)}),
      backlogs_(team.peers.size()) {
  due_.reserve(std::min(team.peers.size(), kUsuallyDue));
}

static transport::CreditHeader header_to(const Team& team, uint32_t rank, transport::MessageKind kind) noexcept {
  return {.key = team.keys[rank], .kind = kind, .source = static_cast<uint32_t>(team.rank), .destination = rank};
}

void FlowControl::enqueue(Request& send) noexcept {
  backlogs_.writable(send.header.destination).waiting.push_back(send);
}

static int32_t credit_of(uint64_t count) noexcept {
  return static_cast<int32_t>(std::min<uint64_t>(count, kMostCredit));
}

void FlowControl::on_credit(const transport::CreditHeader& credit) noexcept {
  Rank& rank = ranks_.writable(credit.source);
  rank.num_bytes_left = std::min(rank.num_bytes_left + credit_of(credit.num_bytes), kMostCredit);
  add_messages(credit.source, credit_of(credit.num_messages));
}

// Waiting sends go first, which keeps the order: until they are sent, later sends must wait, too.
void FlowControl::add_messages(uint32_t destination, int32_t num_messages) noexcept {
  if (backlogs_[destination].waiting.empty()) {
    int32_t& left = ranks_.writable(destination).num_messages_left;
    left = std::min(left, kMostCredit) + num_messages;
    return;
  }
  Backlog& backlog = backlogs_.writable(destination);
  backlog.num_regained = std::min(backlog.num_regained, kMostCredit) + num_messages;
  mark_due(destination);
}

bool FlowControl::has_spent_all(uint32_t source) const noexcept {
  const Rank& rank = ranks_[source];
  const int32_t num_spent = rank.num_held + rank.num_messages_owed;
  return num_spent >= static_cast<int32_t>(allowance_.num_messages) && backlogs_[source].num_advanced == 0;
}

void FlowControl::advance(uint32_t source) noexcept {
  backlogs_.writable(source).num_advanced = num_messages_to_return_;
  mark_due(source);
}

void FlowControl::mark_due(uint32_t rank) noexcept {
  if (std::ranges::find(due_, rank) == due_.end()) due_.push_back(rank);
  if (settled_by_ != nullptr && !linked()) settled_by_->push_back(*this);
}

void FlowControl::settle() noexcept {
  while (!due_.empty()) {
    const uint32_t rank = due_.back();
    due_.pop_back();
    return_credit(rank);
    send_waiting(rank);
  }
}

void FlowControl::return_credit(uint32_t source) noexcept {
  Rank& rank = ranks_.writable(source);
  const int32_t num_advanced = backlogs_[source].num_advanced;
  if (num_advanced != 0) backlogs_.writable(source).num_advanced = 0;
  if (num_advanced == 0 && !is_worth_returning(rank)) return;
  const int32_t num_messages = std::max(rank.num_messages_owed, 0) + num_advanced;
  rank.num_messages_owed -= num_messages;
  send_credit(source, num_messages, std::exchange(rank.num_bytes_owed, 0));
}

// Fails if the rank is gone, which is reported elsewhere.
void FlowControl::send_credit(uint32_t source, int32_t num_messages, uint32_t num_bytes) noexcept {
  transport::CreditHeader credit = header_to(team_, source, transport::MessageKind::kCredit);
  credit.num_messages = static_cast<uint32_t>(num_messages);
  credit.num_bytes = num_bytes;
  (void)transport_.send(team_.peers[source], credit, {}, transport::unattended);
}

void FlowControl::tell_of_leave(transport::Transport& transport, const Team& team, uint32_t rank,
                                uint32_t num_sent) noexcept {
  if (static_cast<int>(rank) == team.rank) return;
  transport::CreditHeader header = header_to(team, rank, transport::MessageKind::kLeave);
  header.num_sent = num_sent;
  (void)transport.send(team.peers[rank], header, {}, transport::unattended);
}

void FlowControl::fail_waiting(uint32_t destination, const Status& reason) noexcept {
  if (backlogs_[destination].waiting.empty()) return;
  IntrusiveList<Request, InInbox>& waiting = backlogs_.writable(destination).waiting;
  while (Request* const send = waiting.pop_front()) send->exchange->fail(reason.clone());
}

void FlowControl::send_waiting(uint32_t destination) noexcept {
  if (!backlogs_[destination].has_any()) return;
  Backlog& backlog = backlogs_.writable(destination);
  int32_t& left = ranks_.writable(destination).num_messages_left;
  left += std::exchange(backlog.num_regained, 0);
  while (left > 0) {
    Request* const next = backlog.waiting.pop_front();
    if (next == nullptr) break;
    next->exchange->transmit(*next);
  }
}

}  // namespace axon::messaging
