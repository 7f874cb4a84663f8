#include "messaging/messenger.hpp"

#include <cstring>
#include <new>
#include <string>

#include "base/log.hpp"

namespace axon::messaging {

// Returns whether a rank of the team has sent the message, to this rank.
template <typename Header>
static bool is_between_members(const Team& team, const Header& header) noexcept {
  return header.destination == static_cast<uint32_t>(team.rank) && header.source < team.peers.size();
}

static bool is_between_runtimes(transport::MessageFamily family) noexcept {
  return family == transport::MessageFamily::kCall || family == transport::MessageFamily::kOneSided;
}

static void hand_to(Addressee& addressee, transport::MessageFamily family, const transport::MessageHeader& header,
                    const transport::Payload& payload) noexcept {
  if (family == transport::MessageFamily::kCall) [[likely]]
    return addressee.on_message(header.as<transport::CallHeader>(), payload);
  addressee.on_message(header.as<transport::OneSidedHeader>(), payload);
}

Unexpected& hold_copy(SizeClassPool& pool, const transport::MessageHeader& header, const transport::Payload& payload) {
  const size_t num_copied = payload.rendezvous == nullptr ? payload.num_bytes : 0;
  void* allocation = pool.allocate(sizeof(Unexpected) + num_copied);
  auto* message = new (allocation) Unexpected;
  message->header = header;
  message->payload = payload;
  if (num_copied != 0) {
    auto* copy = reinterpret_cast<std::byte*>(message + 1);
    std::memcpy(copy, payload.bytes, num_copied);
    message->payload.bytes = copy;
  }
  return *message;
}

void release_copy(SizeClassPool& pool, Unexpected& message) noexcept {
  const size_t num_bytes = sizeof(Unexpected) + message.num_bytes_copied();
  message.unlink();
  message.~Unexpected();
  pool.release(&message, num_bytes);
}

Messenger::Messenger(transport::Transport& transport, LossListener& loss_listener)
    : transport_(transport), loss_listener_(loss_listener), early_(transport_, size_class_pool_) {
  transport_.set_receiver(*this);
}

Messenger::~Messenger() {
  while (Request* orphan = orphans_.pop_front()) {
    orphan->~Request();
    size_class_pool_.release(orphan, sizeof(Request));
  }
}

void Messenger::retire(uint64_t key) noexcept {
  if (early_.retire(key)) retired_.add(key);
}

void Messenger::retire_series(uint32_t upper_half) noexcept {
  early_.retire_series(upper_half, [this](uint64_t key) { retired_.add(key); });
}

void Messenger::attach(Inbox& inbox) {
  const uint64_t key = inbox.team().own_key();
  inboxes_.emplace(key, &inbox);
  inbox.flow().settle_by(&due_);
  const auto deliver_to = [&](const Unexpected& message) { deliver(inbox, message.header, message.payload); };
  if (early_.hand_out(key, deliver_to)) {
    inbox.overflow(Status(ErrorCode::kResourceExhausted,
                          "messages that arrived before this rank formed the group were dropped: it keeps at most " +
                              std::to_string(EarlyMessages::kMostBytes >> 20) +
                              " MiB for groups that are not formed yet"));
  }
}

void Messenger::detach(Inbox& inbox) noexcept {
  const uint64_t key = inbox.team().own_key();
  if (inboxes_.erase(key) == 0) return;
  inbox.flow().settle_by(nullptr);
  retired_.add(key);
  remember(inbox);
  num_refused_ += inbox.num_refused();
}

void Messenger::remember(const Inbox& inbox) {
  const Team& team = inbox.team();
  while (!left_.empty() && (left_.size() >= kMostLeft || num_ranks_left_ > kMostRanksLeft)) {
    num_ranks_left_ -= left_.front().team.peers.size();
    left_.pop_front();
  }
  Left& left = left_.emplace_back(Left{.key = team.own_key(),
                                       .team = {.rank = team.rank, .peers = team.peers, .keys = team.keys},
                                       .are_told = std::vector<bool>(team.peers.size())});
  num_ranks_left_ += team.peers.size();
  inbox.for_each_sent_to([&](uint32_t rank, uint32_t count) { left.num_sent.emplace(rank, count); });
}

bool Messenger::attach(uint64_t key, Addressee& addressee) {
  addressees_.emplace(key, &addressee);
  return !early_.hand_out(key, [&](const Unexpected& message) {
    const transport::MessageFamily family = family_of(message.header.kind);
    if (is_between_runtimes(family)) return hand_to(addressee, family, message.header, message.payload);
    refuse(message.header, message.payload);
  });
}

void Messenger::detach(uint64_t key) noexcept {
  if (key == latest_key_) latest_addressee_ = nullptr;
  if (addressees_.erase(key) != 0) retired_.add(key);
}

unsigned Messenger::progress() noexcept {
  const unsigned num_moved = transport_.progress();
  run_ready();
  return num_moved;
}

void Messenger::run_ready() noexcept {
  for (;;) {
    while (Wakeable* wakeable = ready_.pop_front()) wakeable->wake();
    if (due_.empty()) [[likely]]
      return;
    due_.pop_front()->settle();
  }
}

void Messenger::on_message(const transport::MessageHeader& header, const transport::Payload& payload) noexcept {
  const transport::MessageFamily family = family_of(header.kind);
  if (is_between_runtimes(family)) {
    if (latest_addressee_ != nullptr && header.key == latest_key_)
      return hand_to(*latest_addressee_, family, header, payload);
    const auto addressee = addressees_.find(header.key);
    if (addressee != addressees_.end()) {
      latest_key_ = header.key;
      latest_addressee_ = addressee->second;
      return hand_to(*latest_addressee_, family, header, payload);
    }
  } else if (const auto inbox = inboxes_.find(header.key); inbox != inboxes_.end()) {
    return deliver(*inbox->second, header, payload);
  }
  take_unowned(header, payload);
}

void Messenger::deliver(Inbox& inbox, const transport::MessageHeader& header,
                        const transport::Payload& payload) noexcept {
  switch (family_of(header.kind)) {
    case transport::MessageFamily::kOperation: {
      const auto message = header.as<transport::OperationHeader>();
      if (!is_between_members(inbox.team(), message)) break;
      return inbox.on_message(message, payload);
    }
    case transport::MessageFamily::kCredit: {
      const auto credit = header.as<transport::CreditHeader>();
      if (!is_between_members(inbox.team(), credit) || payload.rendezvous != nullptr) break;
      return inbox.on_credit(credit);
    }
    case transport::MessageFamily::kControl: {
      const auto control = header.as<transport::ControlHeader>();
      if (!is_between_members(inbox.team(), control)) break;
      inbox.on_control(control, payload);
      if (payload.rendezvous != nullptr) transport_.refuse(payload.rendezvous, Status());  // members send them eagerly
      return;
    }
    default:  // an unknown kind, or a transport's
      break;
  }
  refuse(header, payload);
}

void Messenger::on_peer_lost(transport::PeerId peer, Status reason) noexcept {
  loss_listener_.on_peer_lost(peer, std::move(reason));
}

void Messenger::mark_lost(transport::PeerId peer, std::string why) {
  if (is_lost(peer)) return;
  lost_.resize(std::max<size_t>(lost_.size(), peer + 1));
  lost_[peer] = true;
  losses_.emplace(peer, std::move(why));
  transport_.drop_peer(peer);
}

// If this process has not formed the group yet, the message is kept. If the group is gone, it is dropped. If there is
// no such group, it is refused.
void Messenger::take_unowned(const transport::MessageHeader& header, const transport::Payload& payload) noexcept {
  if (early_.expects(header.key) || !retired_.contains(header.key)) {
    if (!early_.hold(header, payload)) refuse(header, payload);
    return;
  }
  early_.drop(payload);
  answer_late(header);
}

// Without an answer, a rank that goes on sending would use up its credit and wait for more until it times out. So would
// one that awaits a message from this rank.
void Messenger::answer_late(const transport::MessageHeader& header) noexcept {
  const bool is_contact = header.kind == transport::MessageKind::kContact;
  if (!is_contact && family_of(header.kind) != transport::MessageFamily::kOperation) return;
  const uint32_t source =
      is_contact ? header.as<transport::ControlHeader>().source : header.as<transport::OperationHeader>().source;
  const auto left = std::ranges::find(left_, header.key, &Left::key);
  if (left == left_.end() || source >= left->are_told.size() || left->are_told[source]) return;
  left->are_told[source] = true;
  if (is_lost(left->team.peers[source])) return;
  const auto sent = left->num_sent.find(source);
  FlowControl::tell_of_leave(transport_, left->team, source, sent == left->num_sent.end() ? 0 : sent->second);
}

void Messenger::refuse(const transport::MessageHeader& header, const transport::Payload& payload) noexcept {
  if (num_refused_++ == 0) {
    log::warn("refused a message of kind " + std::to_string(static_cast<int>(header.kind)) +
              " that is not from a member of a group; further ones will be refused silently");
  }
  if (payload.rendezvous == nullptr) return;
  transport_.refuse(payload.rendezvous, {ErrorCode::kAborted, "the receiver has no group with its key"});
}

void Messenger::on_refused(const char* what) noexcept {
  if (num_refused_++ == 0) {
    log::warn(std::string("refused ") + what + "; further invalid messages will be refused silently");
  }
}

uint64_t Messenger::num_refused() const noexcept {
  uint64_t total = num_refused_;
  for (const auto& [key, inbox] : inboxes_) total += inbox->num_refused();
  return total;
}

}  // namespace axon::messaging
