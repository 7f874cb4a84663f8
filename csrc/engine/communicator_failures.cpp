// How a group fails, and which ranks are notified: failures here, at other ranks, and ranks that are gone.
#include <algorithm>

#include "engine/communicator.hpp"
#include "engine/engine.hpp"

namespace axon::engine {

// The longest text of a failure notice. It fits into one eager message of any transport.
static constexpr size_t kLongestNotice = 4096;

void Communicator::fail(Status reason) noexcept {
  if (!failure_.ok()) return;
  notify_others(transport::OperationKind::kFailureNotice, reason);
  fail_quietly(std::move(reason));
}

void Communicator::fail_quietly(Status reason) noexcept {
  if (!failure_.ok()) return;
  failure_ = std::move(reason);
  broken_.store(true, std::memory_order_relaxed);
  if (device_hook_ != nullptr) device_hook_->on_failed(failure_);
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    if (operation->direction == Direction::kCollective) operation->exchange_->fail(failure_.clone());
  }
}

void Communicator::abort(std::string reason) noexcept {
  if (engine_.is_forked()) return;
  engine_.progress_->exclusively([&] {
    if (!inbox_) return;
    engine_.settle();  // operations that were started before are sent, and counted as sent
    // Other ranks may receive this notice before another rank's notice tells them the reason.
    const std::string why = failure_.ok() ? reason : reason + ": " + failure_.message();
    if (aborted_.ok()) notify_others(transport::OperationKind::kDeparture, Status(ErrorCode::kAborted, why));
    abort_quietly(reason);
    engine_.settle();
  });
}

void Communicator::close() noexcept {
  if (engine_.is_forked()) return;
  engine_.progress_->exclusively([this] {
    engine_.settle();
    abort_quietly("the group was destroyed");
    engine_.settle();
  });
}

void Communicator::abort_quietly(const std::string& reason) noexcept {
  end(Status(ErrorCode::kAborted, reason));
}

void Communicator::end(Status reason) noexcept {
  if (!aborted_.ok()) return;
  aborted_ = std::move(reason);
  broken_.store(true, std::memory_order_relaxed);
  if (device_hook_ != nullptr) device_hook_->on_failed(aborted_);
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    operation->exchange_->fail(aborted_.clone());
  }
}

void Communicator::notify_others(transport::OperationKind kind, const Status& reason) noexcept {
  for (int other = 0; other < size(); ++other) {
    send_control(kind, other, static_cast<uint32_t>(reason.code()), reason.message().substr(0, kLongestNotice));
  }
}

void Communicator::send_control(transport::OperationKind kind, int destination, uint32_t slot,
                                const std::string& text) noexcept {
  if (destination == rank()) return;
  const uint64_t num_sent = kind == transport::OperationKind::kDeparture ? inbox_->num_sent(destination) : 0;
  const transport::MessageHeader header{.key = team_.keys[static_cast<size_t>(destination)],
                                        .source = static_cast<uint32_t>(rank()),
                                        .destination = static_cast<uint32_t>(destination),
                                        .sequence = latest_.sequence,
                                        .slot = slot,
                                        .fingerprint = {.operation = kind, .num_elements = num_sent}};
  engine_.send_control(team_.peers[destination], header, text);
}

static std::string text_of(const transport::Payload& payload) {
  if (payload.bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(payload.bytes), std::min(payload.num_bytes, kLongestNotice)};
}

// An operation may have got its last message just before this one: it must complete before the notice can fail it.
void Communicator::on_control(const transport::MessageHeader& header, const transport::Payload& payload) noexcept {
  engine_.messenger_.run_ready();
  engine_.finish_completed();
  const int source = static_cast<int>(header.source);
  switch (header.fingerprint.operation) {
    case transport::OperationKind::kFailureNotice:
    case transport::OperationKind::kDeparture: {
      const auto code = static_cast<ErrorCode>(std::min(header.slot, static_cast<uint32_t>(ErrorCode::kInternal)));
      Status reason(code, "rank " + std::to_string(source) + " reports: " + text_of(payload));
      fail_quietly(reason.clone());
      if (header.fingerprint.operation == transport::OperationKind::kFailureNotice) break;
      on_departure(source, static_cast<uint32_t>(header.fingerprint.num_elements), std::move(reason));
      break;
    }
    case transport::OperationKind::kProgressQuery:
      send_control(transport::OperationKind::kProgressReply, source, 0, latest_calls());
      break;
    case transport::OperationKind::kProgressReply:
      answers_.record(source, header.sequence, text_of(payload));
      break;
    default:
      break;
  }
}

// What the rank had sent still arrives, but it receives nothing any more.
void Communicator::on_departure(int source, uint32_t num_sent, Status reason) noexcept {
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    const bool sends_there = operation->direction == Direction::kSend && operation->peer == source;
    if (sends_there) operation->exchange_->fail(reason.clone());
  }
  inbox_->depart(static_cast<uint32_t>(source), num_sent, std::move(reason));
}

static std::string describe(const transport::Fingerprint& fingerprint) {
  std::string text = std::string(name_of(fingerprint.operation)) + " (" + name_of(fingerprint.dtype);
  if (fingerprint.operation != transport::OperationKind::kAllToAll) {  // whose sizes differ by pair of ranks
    text += ", " + std::to_string(fingerprint.num_elements) + " elements";
  }
  if (fingerprint.reduction != Reduction::kNone) text += std::string(", ") + name_of(fingerprint.reduction);
  if (fingerprint.root >= 0) text += ", root " + std::to_string(fingerprint.root);
  return text + ", algorithm " + std::to_string(fingerprint.algorithm) + ")";
}

Status Communicator::on_mismatch(const transport::MessageHeader& theirs, const transport::Fingerprint& ours) noexcept {
  Operation* mine = nullptr;
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    if (operation->sequence_ == theirs.sequence) mine = operation;
  }
  const std::string own = mine != nullptr ? mine->describe() + ", that is " + describe(ours) : describe(ours);
  Status mismatch(ErrorCode::kMismatch, "mismatched collectives at #" + std::to_string(theirs.sequence) + ": rank " +
                                            std::to_string(theirs.source) + " called " + describe(theirs.fingerprint) +
                                            ", rank " + std::to_string(rank()) + " called " + own);
  fail(mismatch.clone());
  return mismatch;
}

// A message has been dropped, so no result of this group is reliable any more.
void Communicator::on_overflow(Status reason) noexcept {
  if (!aborted_.ok()) return;
  notify_others(transport::OperationKind::kDeparture, reason);
  end(std::move(reason));
}

// Returns false after the collectives have failed: other ranks may still send for those that this rank ended when it
// was notified. They must get the reason of the failure, rather than that a message was refused.
bool Communicator::has_ended(uint32_t sequence) noexcept {
  const auto is_it = [&](const Operation& operation) {
    return operation.direction == Direction::kCollective && operation.sequence_ == sequence;
  };
  return failure_.ok() && aborted_.ok() && running_.find(is_it) == nullptr;
}

// Describes the latest message from each of the other ranks, which shows how far they are.
std::string Communicator::last_messages() const {
  static constexpr int kMostNamed = 16;
  std::string text;
  for (int other = 0, num_named = 0; other < size() && num_named < kMostNamed; ++other) {
    if (other == rank()) continue;
    ++num_named;
    const transport::MessageHeader* latest = inbox_->latest_from(other);
    text += (text.empty() ? "Last messages: rank " : ", rank ") + std::to_string(other) + " (";
    if (latest == nullptr) {
      text += "none";
    } else if (latest->fingerprint.operation == transport::OperationKind::kPointToPoint) {
      text += "of a send, tag " + std::to_string(latest->slot);
    } else {
      text += "of #" + std::to_string(latest->sequence) + ", " + describe(latest->fingerprint);
    }
    text += ")";
  }
  return text + ".";
}

Status Communicator::loss_of(int rank) const {
  return {ErrorCode::kPeerLost, "rank " + std::to_string(rank) +
                                    " is gone: " + engine_.peers_.loss_of(team_.peers[static_cast<size_t>(rank)])};
}

void Communicator::on_peer_lost(transport::PeerId peer) noexcept {
  const auto found = std::find(team_.peers.begin(), team_.peers.end(), peer);
  if (found == team_.peers.end()) return;
  const int rank_lost = static_cast<int>(found - team_.peers.begin());
  const Status reason = loss_of(rank_lost);
  if (device_hook_ != nullptr) device_hook_->on_rank_lost(rank_lost, reason);
  bool breaks_collectives = false;
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    if (!operation->exchange_->awaits(peer)) continue;
    if (operation->direction == Direction::kCollective) {
      breaks_collectives = true;
    } else {
      operation->exchange_->fail(reason.clone());
    }
  }
  if (breaks_collectives) fail(reason.followed_by(last_messages()));
}

}  // namespace axon::engine
