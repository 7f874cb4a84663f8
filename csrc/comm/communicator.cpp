#include "comm/communicator.hpp"

#include <algorithm>

#include "base/trace.hpp"
#include "collectives/selector.hpp"
#include "comm/engine.hpp"

namespace axon {

// Longer ones would overflow the clock.
static constexpr std::chrono::hours kLongestTimeout{24 * 365};
// What a failure notice may carry: within one eager message of any transport.
static constexpr size_t kLongestNotice = 4096;

Communicator::Communicator(Engine& engine, std::string name, Team team)
    : engine_(engine),
      name_(std::move(name)),
      team_(std::move(team)),
      track_(trace::is_on() ? trace::add_track(name_) : 0),
      answers_(team_.size()) {
  inbox_.emplace(*engine_.transport_, engine_.messenger_.block_pool(), team_, *this);
}

Communicator::~Communicator() {
  if (engine_.is_forked()) return;
  close();
  engine_.progress_->exclusively([this] { leave(); });
}

void Communicator::leave() noexcept {
  if (!inbox_) return;
  engine_.messenger_.detach(*inbox_);
  inbox_.reset();
  std::erase(engine_.communicators_, this);
}

void Communicator::start(Operation& operation) noexcept {
  operation.communicator_ = this;
  operation.called_at_ = Clock::now();
  operation.deadline_ = operation.called_at_ + std::min<std::chrono::milliseconds>(operation.timeout, kLongestTimeout);
  if (operation.direction == Direction::kCollective) num_started_.fetch_add(1, std::memory_order_relaxed);
  if (engine_.is_forked()) [[unlikely]] {
    operation.released_ = true;
    return fail_in_fork(operation);
  }
  engine_.submit(operation);
}

bool Communicator::wait(Operation& operation, Clock::time_point deadline) noexcept {
  if (operation.finished()) return true;
  if (engine_.is_forked()) [[unlikely]]
    fail_in_fork(operation);
  return engine_.progress_->wait(operation.finished_, deadline);
}

// In this process's memory alone. What its parent had in flight is never released here: the engine stays as it was.
void Communicator::fail_in_fork(Operation& operation) noexcept {
  const Status reason = Engine::forked();
  operation.status_ = Status(reason.code(), signed_text(operation.describe() + ": " + reason.message()));
  operation.next = nullptr;
  engine_.deliver(&operation);
}

void Communicator::accompany(Companion* companion) noexcept {
  if (engine_.is_forked()) return;
  engine_.progress_->exclusively([&] {
    companion_ = companion;
    if (companion == nullptr) return;
    if (const Status& reason = aborted_.ok() ? failure_ : aborted_; !reason.ok()) companion->on_failed(reason);
    for (int rank = 0; rank < size(); ++rank) {
      const PeerId peer = team_.peers[static_cast<size_t>(rank)];
      if (engine_.messenger_.is_lost(peer)) companion->on_rank_lost(rank, loss_of(rank));
    }
  });
}

Result<PeerPath> Communicator::path_to(int rank) {
  if (engine_.is_forked()) return Engine::forked();
  return engine_.progress_->exclusively([&]() -> Result<PeerPath> {
    if (!inbox_) return aborted_.clone();
    const PeerId peer = team_.peers[static_cast<size_t>(rank)];
    Result<std::vector<Lane>> lanes = engine_.transport_->lanes(peer);
    if (!lanes.ok()) return std::move(lanes.status());
    return PeerPath{.same_host = engine_.peers_[peer].card.host == engine_.card_.host,
                    .lanes = std::move(lanes).value()};
  });
}

// Why this operation cannot even begin; ok if it can.
const Status& Communicator::obstacle(const Operation& operation) const noexcept {
  return aborted_.ok() && operation.direction == Direction::kCollective ? failure_ : aborted_;
}

void Communicator::begin(Operation& operation) noexcept {
  if (!obstacle(operation).ok()) {
    engine_.over_.push_back(operation);
    return;
  }
  Fingerprint fingerprint = operation.fingerprint(0);
  std::string_view algorithm;
  if (operation.direction == Direction::kCollective) {
    const CollectiveArguments& arguments = operation.arguments;
    const AlgorithmRow& row =
        select(arguments.kind, size(), operation.num_elements * size_of(arguments.dtype), engine_.overrides_);
    operation.algorithm_ = row.algorithm;
    operation.sequence_ = latest_.sequence + 1;
    fingerprint.algorithm = row.id;
    latest_ = operation.record();
    algorithm = row.name;
  }
  if (trace::is_on()) [[unlikely]]
    trace_begin(operation, algorithm);
  operation.exchange_.emplace(engine_.messenger_, *inbox_, operation.sequence_, fingerprint);
  running_.push_back(operation);
  if (operation.direction == Direction::kCollective) inbox_->enter(operation.sequence_, fingerprint);
  operation.task_.emplace(operation.run());
  if (operation.gate == nullptr) return operation.task_->resume();
  engine_.gated_.push_back(&operation);
}

void Communicator::on_run_over(Operation& operation) noexcept {
  operation.unlink();
  const bool leaves = operation.direction == Direction::kCollective && operation.exchange_->failure().ok();
  if (leaves) inbox_->leave(operation.sequence_);
  engine_.over_.push_back(operation);
}

void Communicator::finish(Operation& operation) noexcept {
  Status status = operation.task_ ? operation.task_->take() : obstacle(operation).clone();
  operation.task_.reset();
  if (operation.exchange_) operation.source_ = operation.exchange_->matched_source();
  if (trace::is_on() && operation.exchange_) [[unlikely]]
    trace_end(operation, status);
  if (status.ok()) return;
  const std::string described = operation.describe() + ": " + status.message();
  if (operation.direction == Direction::kCollective && failure_.ok()) fail(Status(status.code(), described));
  operation.status_ = Status(status.code(), signed_text(described));
}

std::string Communicator::signed_text(const std::string& text) const {
  return "[rank " + std::to_string(rank()) + " of group '" + name_ + "'] " + text;
}

void Communicator::fail(Status reason) noexcept {
  if (!failure_.ok()) return;
  notify_others(OperationKind::kFailureNotice, reason);
  fail_quietly(std::move(reason));
}

void Communicator::fail_quietly(Status reason) noexcept {
  if (!failure_.ok()) return;
  failure_ = std::move(reason);
  broken_.store(true, std::memory_order_relaxed);
  if (companion_ != nullptr) companion_->on_failed(failure_);
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    if (operation->direction == Direction::kCollective) operation->exchange_->fail(failure_.clone());
  }
}

void Communicator::abort(std::string reason) noexcept {
  if (engine_.is_forked()) return;
  engine_.progress_->exclusively([&] {
    if (!inbox_) return;
    if (aborted_.ok()) notify_others(OperationKind::kDeparture, Status(ErrorCode::kAborted, reason));
    abort_quietly(reason);
    engine_.settle();
  });
}

void Communicator::close() noexcept {
  if (engine_.is_forked()) return;
  engine_.progress_->exclusively([this] {
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
  if (companion_ != nullptr) companion_->on_failed(aborted_);
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    operation->exchange_->fail(aborted_.clone());
  }
}

void Communicator::notify_others(OperationKind kind, const Status& reason) noexcept {
  for (int other = 0; other < size(); ++other) {
    send_control(kind, other, static_cast<uint32_t>(reason.code()), reason.message().substr(0, kLongestNotice));
  }
}

void Communicator::send_control(OperationKind kind, int destination, uint32_t slot, const std::string& text) noexcept {
  if (destination == rank()) return;
  const uint64_t num_sent = kind == OperationKind::kDeparture ? inbox_->num_sent(destination) : 0;
  const MessageHeader header{.key = team_.keys[static_cast<size_t>(destination)],
                             .source = static_cast<uint32_t>(rank()),
                             .destination = static_cast<uint32_t>(destination),
                             .sequence = latest_.sequence,
                             .slot = slot,
                             .fingerprint = {.operation = kind, .num_elements = num_sent}};
  engine_.send_control(team_.peers[destination], header, text);
}

static std::string text_of(const Payload& payload) {
  if (payload.bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(payload.bytes), std::min(payload.num_bytes, kLongestNotice)};
}

void Communicator::on_control(const MessageHeader& header, const Payload& payload) noexcept {
  const int source = static_cast<int>(header.source);
  switch (header.fingerprint.operation) {
    case OperationKind::kFailureNotice:
    case OperationKind::kDeparture: {
      const auto code = static_cast<ErrorCode>(std::min(header.slot, static_cast<uint32_t>(ErrorCode::kInternal)));
      Status reason(code, "rank " + std::to_string(source) + " reports: " + text_of(payload));
      fail_quietly(reason.clone());
      if (header.fingerprint.operation == OperationKind::kFailureNotice) break;
      on_departure(source, static_cast<uint32_t>(header.fingerprint.num_elements), std::move(reason));
      break;
    }
    case OperationKind::kProgressQuery:
      send_control(OperationKind::kProgressReply, source, 0, latest_calls());
      break;
    case OperationKind::kProgressReply:
      answers_.record(source, header.sequence, text_of(payload));
      break;
    default:
      break;
  }
}

// What it had sent still comes; nothing that it was to receive is taken any more.
void Communicator::on_departure(int source, uint32_t num_sent, Status reason) noexcept {
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    const bool sends_there = operation->direction == Direction::kSend && operation->peer == source;
    if (sends_there) operation->exchange_->fail(reason.clone());
  }
  inbox_->depart(static_cast<uint32_t>(source), num_sent, std::move(reason));
}

static std::string describe(const Fingerprint& fingerprint) {
  std::string text = std::string(name_of(fingerprint.operation)) + " (" + name_of(fingerprint.dtype) + ", " +
                     std::to_string(fingerprint.num_elements) + " elements";
  if (fingerprint.reduction != Reduction::kNone) text += std::string(", ") + name_of(fingerprint.reduction);
  if (fingerprint.root >= 0) text += ", root " + std::to_string(fingerprint.root);
  return text + ", algorithm " + std::to_string(fingerprint.algorithm) + ")";
}

void Communicator::on_mismatch(const MessageHeader& theirs, const Fingerprint& ours) noexcept {
  Operation* mine = nullptr;
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    if (operation->sequence_ == theirs.sequence) mine = operation;
  }
  const std::string own = mine != nullptr ? mine->describe() + ", that is " + describe(ours) : describe(ours);
  fail(Status(ErrorCode::kMismatch, "mismatched collectives at #" + std::to_string(theirs.sequence) + ": rank " +
                                        std::to_string(theirs.source) + " called " + describe(theirs.fingerprint) +
                                        ", rank " + std::to_string(rank()) + " called " + own));
}

// A message has been dropped, so nothing that this group does can be relied on any more.
void Communicator::on_overflow(Status reason) noexcept {
  if (!aborted_.ok()) return;
  notify_others(OperationKind::kDeparture, reason);
  end(std::move(reason));
}

// Not once the collectives have failed: of those that this rank was told to end others may still be sending, and they
// are told why, rather than that a message was refused.
bool Communicator::has_ended(uint32_t sequence) noexcept {
  const auto is_it = [&](const Operation& operation) {
    return operation.direction == Direction::kCollective && operation.sequence_ == sequence;
  };
  return failure_.ok() && aborted_.ok() && running_.find(is_it) == nullptr;
}

// What has come last from each of the other ranks, as far as it tells where they are.
std::string Communicator::last_messages() const {
  static constexpr int kMostNamed = 16;
  std::string text;
  for (int other = 0, num_named = 0; other < size() && num_named < kMostNamed; ++other) {
    if (other == rank()) continue;
    ++num_named;
    const MessageHeader* latest = inbox_->latest_from(other);
    text += (text.empty() ? "Last messages: rank " : ", rank ") + std::to_string(other) + " (";
    if (latest == nullptr) {
      text += "none";
    } else if (latest->fingerprint.operation == OperationKind::kPointToPoint) {
      text += "of a send, tag " + std::to_string(latest->slot);
    } else {
      text += "of #" + std::to_string(latest->sequence) + ", " + describe(latest->fingerprint);
    }
    text += ")";
  }
  return text + ".";
}

Status Communicator::loss_of(int rank) const {
  return {ErrorCode::kPeerLost,
          "rank " + std::to_string(rank) + " is gone: " + engine_.peers_[team_.peers[static_cast<size_t>(rank)]].loss};
}

void Communicator::on_peer_lost(PeerId peer) noexcept {
  const auto found = std::find(team_.peers.begin(), team_.peers.end(), peer);
  if (found == team_.peers.end()) return;
  const int rank_lost = static_cast<int>(found - team_.peers.begin());
  const Status reason = loss_of(rank_lost);
  if (companion_ != nullptr) companion_->on_rank_lost(rank_lost, reason);
  bool breaks_collectives = false;
  for (Operation* operation = running_.front(); operation != nullptr; operation = running_.next(*operation)) {
    if (!operation->exchange_->awaits(peer)) continue;
    if (operation->direction == Direction::kCollective) {
      breaks_collectives = true;
    } else {
      operation->exchange_->fail(reason.clone());
    }
  }
  if (breaks_collectives) fail(Status(reason.code(), reason.message() + ". " + last_messages()));
}

}  // namespace axon
