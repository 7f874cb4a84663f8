// How a group fails, and which ranks are notified: failures here, at other ranks, and ranks that are gone.
#include <algorithm>

#include "base/log.hpp"
#include "engine/engine.hpp"
#include "engine/group.hpp"
#include "engine/group_message.hpp"
#include "engine/overlay.hpp"

namespace axon::engine {

// Most messages arrive earlier, and make the two ranks known to each other.
static constexpr std::chrono::milliseconds kContactDelay{200};
static constexpr std::chrono::seconds kContactInterval{2};

void Group::fail(Status reason) noexcept {
  if (!failure_.ok()) return;
  notify_others(transport::MessageKind::kFailureNotice, reason.code(), reason.message());
  fail_quietly(std::move(reason));
}

void Group::fail_quietly(Status reason) noexcept {
  if (!failure_.ok()) return;
  failure_ = std::move(reason);
  status_.fail(failure_.message());
  broken_.store(true, std::memory_order_relaxed);
  if (device_hook_ != nullptr) device_hook_->on_failed(failure_);
  for_each_running([&](Operation& operation) {
    if (operation.direction == Direction::kCollective) operation.fail(failure_.clone());
  });
}

// Other ranks may receive this notice before another rank's notice tells them the reason of a failure.
void Group::abort(const std::string& reason) noexcept {
  if (!aborted_.ok()) return;
  const std::string why = failure_.ok() ? reason : reason + ": " + failure_.message();
  notify_others(transport::MessageKind::kDeparture, ErrorCode::kAborted, why);
  status_.fail(reason);
  end(Status(ErrorCode::kAborted, reason));
}

void Group::close() noexcept {
  status_.hide();
  end(Status(ErrorCode::kAborted, "the group was destroyed"));
}

void Group::leave(const std::string& reason) noexcept {
  if (!aborted_.ok()) return;
  if ((!failure_.ok() && !leave_) || has_operations()) return abort(reason);
  notify_others(transport::MessageKind::kDeparture, ErrorCode::kOk, reason);
  status_.hide();
  end(Status(ErrorCode::kAborted, reason));
}

void Group::end(Status reason) noexcept {
  if (!aborted_.ok()) return;
  aborted_ = std::move(reason);
  broken_.store(true, std::memory_order_relaxed);
  if (device_hook_ != nullptr) device_hook_->on_failed(aborted_);
  for_each_running([&](Operation& operation) { operation.fail(aborted_.clone()); });
}

// While a group forms, a lost rank of another host may only have lost this one earlier, and connect again. It would
// wait for this rank until its timeout, so it is told over another connection.
std::optional<messaging::Team> Group::team_met_again(std::span<const int> ranks) const {
  const auto peer_of = [&](int rank) { return team_.peers[static_cast<size_t>(rank)]; };
  const auto is_lost = [&](int rank) {
    return engine_.messenger().is_lost(peer_of(rank)) && !engine_.peers().is_neighbour(peer_of(rank));
  };
  if (has_worked_.load(std::memory_order_relaxed) || std::ranges::none_of(ranks, is_lost)) return std::nullopt;
  messaging::Team team = team_;
  for (const int rank : ranks) {
    if (!is_lost(rank)) continue;
    const PeerAddress address = engine_.peers().address_of(peer_of(rank));
    if (const Result<transport::PeerId> again = engine_.meet(address); again.ok())
      team.peers[static_cast<size_t>(rank)] = again.value();
  }
  return team;
}

// Few ranks need to know of one that leaves in order. A departure ends receives of the ranks that have
// exchanged messages with this one, and kernels of its host, so they get it from this rank itself.
std::vector<int> Group::ranks_to_notify(transport::MessageKind kind, ErrorCode code) const {
  const bool is_departure = kind == transport::MessageKind::kDeparture;
  if (team_.is_fully_connected() || !is_departure) return notified_;
  std::vector<int> ranks = code == ErrorCode::kOk ? overlay::watched_by(team_.rank, team_.size()) : notified_;
  const auto neighbours = team_.topology.ranks_on(team_.topology.host_of(team_.rank));
  ranks.insert(ranks.end(), neighbours.begin(), neighbours.end());
  for (int other = 0; other < team_.size(); ++other) {
    if (inbox_->is_contact(other)) ranks.push_back(other);
  }
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

// An operation that begins after the group was detached may be the first to fail.
void Group::notify_others(transport::MessageKind kind, ErrorCode code, const std::string& text) noexcept {
  if (is_detached()) return;
  const std::vector<int> ranks = ranks_to_notify(kind, code);
  const std::optional<messaging::Team> met_again = team_met_again(ranks);
  const messaging::Team& team = met_again ? *met_again : team_;
  for (const int other : ranks) notify(team, other, kind, code, text);
}

void Group::notify(const messaging::Team& team, int other, transport::MessageKind kind, ErrorCode code,
                   const std::string& text) noexcept {
  send(engine_.messenger(), team, other,
       {.kind = kind,
        .sequence = queries_.latest_sequence(),
        .code = code,
        .num_sent = kind == transport::MessageKind::kDeparture ? inbox_->num_sent(other) : 0,
        .origin = team_.rank,
        .text = text});
}

// In a group that is not fully connected, each rank passes on what first ends the group for it.
void Group::pass_on(const transport::ControlHeader& notice, const std::string& text) noexcept {
  if (team_.is_fully_connected() || is_detached()) return;
  for (const int other : notified_) {
    if (other == static_cast<int>(notice.source) || other == static_cast<int>(notice.origin)) continue;
    send(engine_.messenger(), team_, other,
         {.kind = notice.kind,
          .sequence = notice.latest_sequence,
          .code = notice.error,
          .origin = static_cast<int>(notice.origin),
          .text = text});
  }
}

// In a group that is not fully connected, a rank that is awaited may not know of this one. It would tell this rank
// neither of its end nor that it leaves the group. One that knows of it may have no connection that tells of its end.
void Group::make_contacts(sync::Clock::time_point now) noexcept {
  if (team_.is_fully_connected() || is_detached()) return;
  const bool is_repeated = now >= next_contacts_;  // one may get lost, or its receiver may leave later
  if (is_repeated) next_contacts_ = now + kContactInterval;
  std::vector<int> unwatched;  // they may turn out to be lost, which ends operations
  for_each_running([&](Operation& operation) {
    if (now < operation.called_at() + kContactDelay) return;
    operation.exchange().for_each_awaited([&](int other) { make_contact(other, is_repeated, unwatched); });
    // A receive from any source fails once all other ranks are gone. It suffices to watch one that is not.
    for (const int other : operation.exchange().some_awaited()) make_contact(other, is_repeated, unwatched);
  });
  for (const int rank : unwatched) watch(rank);
}

void Group::make_contact(int rank, bool is_repeated, std::vector<int>& unwatched) noexcept {
  if (rank == team_.rank) return;
  if (!is_watched(rank)) {
    unwatched.push_back(rank);
  } else if (is_repeated || !inbox_->is_known_to(rank)) {
    inbox_->note_asked(rank);
    send(engine_.messenger(), team_, rank, {.kind = transport::MessageKind::kContact});
  }
}

bool Group::is_watched(int rank) const noexcept {
  const transport::PeerId peer = team_.peers[static_cast<size_t>(rank)];
  return engine_.messenger().is_lost(peer) || engine_.peers().is_watched(peer);
}

void Group::watch(int rank) noexcept {
  if (is_watched(rank)) return;
  const Status watched = engine_.watch_peer(team_.peers[static_cast<size_t>(rank)]);
  if (watched.ok() || std::exchange(has_warned_of_watches_, true)) return;
  log::warn(signed_text("the end of rank " + std::to_string(rank) + " may go unnoticed: " + watched.message() +
                        "; this is tried again"));
}

// A rank that was not a contact has missed what this one has told its contacts.
void Group::on_contact(int source) noexcept {
  if (is_detached()) return;
  inbox_->note_contact(source);
  if (!aborted_.ok()) {
    messaging::FlowControl::tell_of_leave(engine_.messenger().transport(), team_, static_cast<uint32_t>(source),
                                          inbox_->num_sent(source));
  } else if (!failure_.ok()) {
    notify(team_, source, transport::MessageKind::kFailureNotice, failure_.code(), failure_.message());
  }
}

// An operation may have got its last message just before this one: it must complete before a notice can fail it.
void Group::on_control(const transport::ControlHeader& header, const transport::Payload& payload) noexcept {
  engine_.run_ready();
  const int source = static_cast<int>(header.source);
  switch (header.kind) {
    case transport::MessageKind::kFailureNotice:
    case transport::MessageKind::kDeparture:
      if (header.origin < team_.peers.size()) on_notice(header, text_of(payload));
      break;
    case transport::MessageKind::kProgressQuery:
      queries_.on_query(source);
      break;
    case transport::MessageKind::kProgressReply:
      queries_.on_reply(
          source, {.sequence = header.latest_sequence, .num_launched = header.num_launched, .calls = text_of(payload)});
      break;
    case transport::MessageKind::kResultDigests:
    case transport::MessageKind::kResultQuery:
    case transport::MessageKind::kResultReply:
      on_results(header.kind, source, payload);
      break;
    case transport::MessageKind::kContact:
      on_contact(source);
      break;
    default:
      break;
  }
}

void Group::on_notice(const transport::ControlHeader& notice, const std::string& text) noexcept {
  const bool is_departure = notice.kind == transport::MessageKind::kDeparture;
  const bool leaves_in_order = is_departure && notice.error == ErrorCode::kOk;
  Status reason(leaves_in_order ? ErrorCode::kAborted
                                : std::min(notice.error, ErrorCode::kInternal),  // a newer version may know more
                "rank " + std::to_string(notice.origin) + " reports: " + text);
  if (leaves_in_order) {
    on_leave(notice, text, reason);
  } else {
    if (failure_.ok()) pass_on(notice, text);
    fail_quietly(reason.clone());
  }
  const bool is_its_own = notice.origin == notice.source;
  if (is_departure && is_its_own)
    on_departure(static_cast<int>(notice.source), static_cast<uint32_t>(notice.num_sent), std::move(reason));
}

void Group::on_results(transport::MessageKind kind, int source, const transport::Payload& payload) noexcept {
  if (!result_check_) {
    if (std::exchange(has_warned_of_results_, true)) return;
    return log::warn(signed_text("rank " + std::to_string(source) +
                                 " checks results, and this rank does not: set AXON_CHECK_RESULTS=1 on all ranks"));
  }
  if (kind == transport::MessageKind::kResultDigests) return result_check_->on_digests(source, payload);
  if (kind == transport::MessageKind::kResultQuery) return result_check_->on_query(source, payload);
  result_check_->on_reply(source, payload);
}

// The rank has completed the collectives that it has begun, and sent all of its messages for them.
void Group::on_leave(const transport::ControlHeader& notice, const std::string& text, const Status& reason) noexcept {
  if (leave_ && !is_after_leave(notice.latest_sequence + 1)) leave_.reset();  // it had begun more of them
  if (!leave_) leave_ = {.notice = notice, .text = text, .reason = reason.clone()};
  if (device_hook_ != nullptr) device_hook_->on_rank_lost(static_cast<int>(notice.origin), reason);
  const auto cannot_end = [&](const Operation& operation) {
    return operation.direction == Direction::kCollective && is_after_leave(operation.sequence());
  };
  if (running_.find(cannot_end) != nullptr) fail_after_leave();
}

// The group itself fails once none of the collectives is left that the rank has completed.
void Group::fail_after_leave() noexcept {
  if (!std::exchange(leave_->is_passed_on, true)) pass_on(leave_->notice, leave_->text);
  bool has_earlier = !is_after_leave(queries_.latest_sequence() + 1);
  for_each_running([&](Operation& operation) {
    if (operation.direction != Direction::kCollective) return;
    if (is_after_leave(operation.sequence())) {
      operation.fail(leave_->reason.clone());
    } else {
      has_earlier = true;
    }
  });
  if (!has_earlier) fail_quietly(leave_->reason.clone());
}

// Replays, whose number is 0, may need any rank.
bool Group::is_after_leave(uint32_t sequence) const noexcept {
  return sequence == 0 || static_cast<int32_t>(sequence - leave_->notice.latest_sequence) > 0;
}

// Messages that the rank has sent still arrive, but it receives none from now on.
void Group::on_departure(int source, uint32_t num_sent, Status reason) noexcept {
  for_each_running([&](Operation& operation) {
    const bool sends_there = operation.direction == Direction::kSend && operation.peer == source;
    if (sends_there) operation.fail(reason.clone());
  });
  inbox_->depart(static_cast<uint32_t>(source), num_sent, std::move(reason));
}

static std::string describe(const transport::Fingerprint& fingerprint) {
  using transport::OperationKind;
  std::string text = std::string(name_of(fingerprint.operation)) + " (";
  if (fingerprint.operation != OperationKind::kBarrier) text += std::string(name_of(fingerprint.dtype)) + ", ";
  const bool has_size = fingerprint.operation != OperationKind::kBarrier &&
                        fingerprint.operation != OperationKind::kAllToAll;  // whose sizes differ by pair of ranks
  if (has_size) text += std::to_string(fingerprint.num_elements) + " elements, ";
  const bool has_digest = fingerprint.operation == OperationKind::kBarrier && fingerprint.num_elements != 0;
  if (has_digest) text += "digest of handles " + std::to_string(fingerprint.num_elements) + ", ";  // of reconfigure()
  if (fingerprint.reduction != Reduction::kNone) text += std::string(name_of(fingerprint.reduction)) + ", ";
  if (fingerprint.root >= 0) text += "root " + std::to_string(fingerprint.root) + ", ";
  constexpr uint8_t kDivision = Operation::kSegments | Operation::kColumns;
  text += "algorithm " + std::to_string(fingerprint.algorithm & ~kDivision);
  if ((fingerprint.algorithm & Operation::kSegments) != 0) text += " on segments of CUDA tensors";
  if ((fingerprint.algorithm & Operation::kColumns) != 0) text += " between GPUs of equal local index";
  return text + ")";
}

static std::string place_of(const transport::OperationHeader& header) {
  if (header.slot < messaging::kFirstReplaySlot) return "#" + std::to_string(header.sequence);
  return "#" + std::to_string(header.sequence & Replay::kMostCalls) + " of CUDA graphs";
}

Status Group::on_mismatch(const transport::OperationHeader& theirs, const transport::Fingerprint& ours) noexcept {
  const bool is_replay = theirs.slot >= messaging::kFirstReplaySlot;
  const auto is_it = [&](const Operation& operation) {
    return operation.direction == Direction::kCollective &&
           (is_replay ? operation.replay.sequence() : operation.sequence()) == theirs.sequence;
  };
  const Operation* mine = running_.find(is_it);
  const std::string own = mine != nullptr ? mine->describe() + ", that is " + describe(ours) : describe(ours);
  Status mismatch(ErrorCode::kMismatch, "mismatched collectives at " + place_of(theirs) + ": rank " +
                                            std::to_string(theirs.source) + " called " + describe(theirs.fingerprint) +
                                            ", rank " + std::to_string(team_.rank) + " called " + own);
  fail(mismatch.clone());
  return mismatch;
}

// A message has been dropped, so no result of this group is reliable any more.
void Group::on_overflow(Status reason) noexcept {
  if (!aborted_.ok()) return;
  notify_others(transport::MessageKind::kDeparture, reason.code(), reason.message());
  status_.fail(reason.message());
  end(std::move(reason));
}

// Returns false after the collectives have failed: other ranks may still send for those that this rank ended when it
// was notified. They must get the reason of the failure, rather than that a message was refused.
bool Group::has_ended(uint32_t sequence) noexcept {
  const auto is_it = [&](const Operation& operation) {
    return operation.direction == Direction::kCollective && operation.sequence() == sequence;
  };
  return failure().ok() && !(leave_ && is_after_leave(sequence)) && running_.find(is_it) == nullptr;
}

// Describes the latest message from each of the other ranks, which shows how far they are.
static std::string last_messages(const messaging::Inbox& inbox) {
  static constexpr int kMostNamed = 16;
  std::string text;
  for (int other = 0, num_named = 0; other < inbox.team().size() && num_named < kMostNamed; ++other) {
    if (other == inbox.team().rank) continue;
    ++num_named;
    const transport::OperationHeader* latest = inbox.latest_from(other);
    text += (text.empty() ? "Last messages: rank " : ", rank ") + std::to_string(other) + " (";
    if (latest == nullptr) {
      text += "none";
    } else if (latest->fingerprint.operation == transport::OperationKind::kPointToPoint) {
      text += "of a send, tag " + std::to_string(latest->slot);
    } else {
      text += "of " + place_of(*latest) + ", " + describe(latest->fingerprint);
    }
    text += ")";
  }
  return text + ".";
}

static Status loss_of(int rank, const std::string& reason) {
  return {ErrorCode::kPeerLost, "rank " + std::to_string(rank) + " is gone: " + reason};
}

void Group::on_peer_lost(transport::PeerId peer, const std::string& why) noexcept {
  const auto found = std::find(team_.peers.begin(), team_.peers.end(), peer);
  if (found == team_.peers.end()) return;
  const int rank_lost = static_cast<int>(found - team_.peers.begin());
  const Status reason = loss_of(rank_lost, why);
  if (device_hook_ != nullptr) device_hook_->on_rank_lost(rank_lost, reason);
  bool breaks_collectives = false;
  for_each_running([&](Operation& operation) {
    if (!operation.exchange().awaits(peer)) return;
    if (operation.direction == Direction::kCollective) {
      breaks_collectives = true;
    } else {
      operation.fail(reason.clone());
    }
  });
  if (breaks_collectives) fail(reason.followed_by(last_messages(*inbox_)));
}

void Group::set_device_hook(DeviceHook* device_hook) noexcept {
  device_hook_ = device_hook;
  if (device_hook == nullptr) return;
  if (!failure().ok()) device_hook->on_failed(failure());
  for (int rank = 0; rank < team_.size(); ++rank) {
    const transport::PeerId peer = team_.peers[static_cast<size_t>(rank)];
    if (inbox_ && !inbox_->departure_of(rank).ok()) device_hook->on_rank_lost(rank, inbox_->departure_of(rank));
    if (engine_.messenger().is_lost(peer)) {
      device_hook->on_rank_lost(rank, loss_of(rank, engine_.messenger().loss_of(peer)));
    }
  }
}

}  // namespace axon::engine
