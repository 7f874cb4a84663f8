#include "rpc/core/connection.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "rpc/core/header_frame.hpp"
#include "rpc/core/header_frame_reader.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon::rpc {

static constexpr std::chrono::seconds kLookInterval{1};
// Messages that a peer sent before it closed its socket travel another way, and may arrive later.
static constexpr std::chrono::milliseconds kHangUpGrace{200};

Connection::Connection(RuntimeCore& core, engine::Engine& engine, Identity identity, transport::PeerId peer)
    : core_(core),
      engine_(engine),
      socket_(std::move(identity.socket)),
      identity_(std::move(identity)),
      peer_(peer),
      is_neighbour_(engine.peers().is_neighbour(peer)),
      call_slots_(kWindow),
      one_sided_(*this, peer, core.exposed()),
      peer_call_slots_(kWindow) {
  const bool is_remote =
      identity_.address.host != engine.peers().own_address().host || !engine.peers().shares_host(peer);
  watches_socket_ = socket_.valid() && is_remote;
  tells_deadlines_ = !engine.messenger().transport().can_withdraw(peer);
  free_slots_.reserve(kWindow);
  for (uint32_t slot = kWindow; slot-- > 0;) {
    call_slots_[slot].number = slot;
    peer_call_slots_[slot].number = slot;
    free_slots_.push_back(slot);
  }
}

void Connection::start(Call& call) noexcept {
  if (call.connection_.get() != this) call.connection_ = shared_from_this();
  call.deadline_ = {};
  if (engine_.is_forked()) [[unlikely]]
    return call.fail_unstarted(engine::Engine::forked());
  call.retain();
  engine_.submit_after_completion(call);
  if (!call.finished()) engine_.wake();
}

bool Connection::wait(Call& call, Clock::time_point deadline, Clock::duration spin_budget) noexcept {
  return call.finished() || engine_.wait(call.finished_, deadline, spin_budget);
}

transport::CallHeader Connection::header_of(transport::MessageKind kind, uint32_t number) const noexcept {
  return {.key = identity_.peer_key, .kind = kind, .number = number};
}

Status Connection::failure() noexcept {
  return engine_.exclusively([&] {
    if (!is_closing()) return failure_.clone();
    return ends_after_answers_ ? closed_there() : closed_here();
  });
}

void Connection::on_message(const transport::CallHeader& header, const transport::Payload& payload) noexcept {
  switch (header.kind) {
    case transport::MessageKind::kInvoke:
    case transport::MessageKind::kTell:
    case transport::MessageKind::kInvokePayload:
      return on_call(header, payload);
    case transport::MessageKind::kReply:
    case transport::MessageKind::kFailure:
      return on_answer(header, payload);
    case transport::MessageKind::kReplyPayload:
      return on_answer_payload(header, payload);
    case transport::MessageKind::kCancel:
      drop(payload);
      return on_cancel(header);
    case transport::MessageKind::kWithdrawn:
      drop(payload);
      return on_withdrawn(header);
    default:
      drop(payload);
      return on_close(header);
  }
}

// Returns whether the library itself sent the one-way call, under a name of its own.
static bool is_own_message(const Call& call) noexcept {
  return call.answer == Call::Answer::kNone && call.request.name().starts_with(kOwnNames);
}

// Returns whether calls that hold all slots may depend on this one: a mailbox that waits for lost messages.
static bool frees_others(const Call& call) noexcept {
  return call.answer == Call::Answer::kNone && call.request.name() == kSettled;
}

static Status cancelled() {
  return {ErrorCode::kCancelled, "the call was cancelled"};
}

Status Connection::why_nothing_begins() const {
  if (!failure_.ok()) return failure_.clone();
  if (ends_after_answers_) return closed_there();
  return closes_at_ ? closed_here() : Status();
}

void Connection::begin(Call& call) noexcept {
  call.begun_ = true;
  ++num_calls_;
  if (!failure_.ok()) return finish(call, failure_.clone());
  if (ends_after_answers_) return finish(call, closed_there());
  if (closes_at_ && !is_own_message(call)) return finish(call, closed_here());
  if (call.given_up_) return finish(call, cancelled());
  call.is_mail ? mail_sender_of(call.request.name()).begin(call) : leave(call);
}

void Connection::leave(Call& call) noexcept {
  const std::atomic<uint32_t>* const flag = call.request.start_flag();
  if (flag == nullptr) return take_slot(call);
  if (!has_room(call)) return;
  awaiting_flags_.push_back(call);
  ++num_waiting_;
  engine_.wait_for_flag(call.start_flag_waiter_, *flag);
}

void Connection::open(Call& call) noexcept {
  if (const std::atomic<uint32_t>* const next = call.request.start_flag())
    return engine_.wait_for_flag(call.start_flag_waiter_, *next);
  call.unlink();
  --num_waiting_;
  take_slot(call);
}

MailSender& Connection::mail_sender_of(std::string_view function) {
  if (latest_mail_sender_ != nullptr && latest_mailbox_ == function) return *latest_mail_sender_;
  auto found = mail_senders_.find(function);
  if (found == mail_senders_.end()) {
    auto made = std::make_unique<MailSender>(*this, function.substr(kMailboxes.size()));
    found = mail_senders_.emplace(std::string(function), std::move(made)).first;
  }
  latest_mailbox_ = found->first;
  latest_mail_sender_ = found->second.get();
  return *latest_mail_sender_;
}

// Returns whether the call may be queued; the call fails if the queue is full.
bool Connection::has_room(Call& call) noexcept {
  if (num_waiting_ < core_.options().max_waiting_calls || frees_others(call)) return true;
  finish(call, Status(ErrorCode::kResourceExhausted, std::to_string(kWindow - free_slots_.size()) + " calls to '" +
                                                         identity_.name + "' await an answer and " +
                                                         std::to_string(num_waiting_) +
                                                         " more are queued, the limit (max_waiting_calls)"));
  return false;
}

// The last slot is reserved for control calls; without it, a full window could deadlock.
bool Connection::has_slot_for(const Call& call) const noexcept {
  return free_slots_.size() > 1 || (!free_slots_.empty() && frees_others(call));
}

void Connection::take_slot(Call& call) noexcept {
  call.reply_.open(engine_, call, core_.limits());
  if (has_slot_for(call)) return launch(call);
  if (!has_room(call)) return;
  frees_others(call) ? waiting_.push_front(call) : waiting_.push_back(call);
  ++num_waiting_;
}

// Writes the send time, and how long the caller waits from then on, in milliseconds.
void Connection::stamp(transport::CallHeader& header, const Call& call) noexcept {
  const Clock::time_point now = Clock::now();
  const bool is_new = call.deadline_ == Clock::time_point{};
  const auto left = is_new ? call.timeout : std::chrono::ceil<std::chrono::milliseconds>(call.deadline_ - now);
  header.sent_at_ms = time_stamp(now);
  header.remaining_ms = static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, UINT32_MAX));
}

void Connection::launch(Call& call) noexcept {
  const uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  CallSlot& slot = call_slots_[index];
  slot.number += kWindow;
  slot.call = &call;
  slot.taken = true;
  call.number_ = slot.number;
  call.at_peer_ = true;
  const bool awaited = call.answer == Call::Answer::kAwaited;
  transport::CallHeader header =
      header_of(awaited ? transport::MessageKind::kInvoke : transport::MessageKind::kTell, call.number_);
  if (awaited && tells_deadlines_) stamp(header, call);
  Status sent = call.request.send(engine_.messenger(), peer_, header, transport::MessageKind::kInvokePayload);
  if (call.is_final_) return;  // a runtime of this process rejected it while it was being sent
  if (!sent.ok()) {
    call.at_peer_ = false;
    slot.call = nullptr;
    slot.taken = false;
    free_slots_.push_back(index);
    if (sent.code() == ErrorCode::kPeerLost) sent = {sent.code(), "'" + identity_.name + "': " + sent.message()};
    return finish(call, std::move(sent));
  }
  if (!awaited && call.request.at_rest()) finish(call, Status());
}

void Connection::launch_waiting() noexcept {
  while (failure_.ok()) {
    Call* call = waiting_.front();
    if (call == nullptr || !has_slot_for(*call)) return;
    call->unlink();
    --num_waiting_;
    launch(*call);
  }
}

void Connection::on_answer(const transport::CallHeader& header, const transport::Payload& payload) noexcept {
  CallSlot& slot = call_slots_[slot_of(header.number)];
  if (!slot.taken || slot.number != header.number) return drop(payload);
  if (slot.call == nullptr) return on_late_answer(slot, header, payload);
  Call& call = *slot.call;
  if (call.answered_) return drop(payload);
  call.answered_ = true;
  if (call.answer == Call::Answer::kNone) {
    drop(payload);
    if (!call.still_exposes()) finish(call, Status());  // otherwise Call::on_sent() finishes it
    return;
  }
  call.failed_there_ = header.kind == transport::MessageKind::kFailure;
  call.reply_.on_header_frame(payload);
}

// Handles the peer's answer to a call that has already ended here.
void Connection::on_late_answer(CallSlot& slot, const transport::CallHeader& header,
                                const transport::Payload& payload) noexcept {
  MailSender* const sender = slot.mail_sender;
  std::vector<std::byte> copy;
  if (sender != nullptr && payload.bytes != nullptr && header.kind == transport::MessageKind::kReply) {
    copy.assign(payload.bytes, payload.bytes + payload.num_bytes);
  }
  drop(payload);
  free_slot(header.number);
  if (sender == nullptr) return;
  HeaderFrame header_frame;
  std::vector<Inbound::Tensor> none;
  const bool is_understood =
      read_header_frame(copy, core_.limits().max_message_num_bytes, header_frame, none) == nullptr;
  sender->on_late_answer(is_understood ? header_frame.values : std::span<const std::byte>());
}

void Connection::on_answer_payload(const transport::CallHeader& header, const transport::Payload& payload) noexcept {
  CallSlot& slot = call_slots_[slot_of(header.number)];
  if (!slot.taken || slot.number != header.number || slot.call == nullptr) return drop(payload);
  slot.call->reply_.on_payload_frame(header, payload);
}

// An answered call frees its slot. A call that ended for another reason keeps the slot until the peer answers.
void Connection::finish(Call& call, Status status) noexcept {
  if (call.linked()) {
    call.unlink();
    call.start_flag_waiter_.unlink();
    --num_waiting_;
  }
  --num_calls_;
  if (!status.ok()) call.reply_.abandon();
  call.status_ = std::move(status);
  call.is_final_ = true;
  call.resting_ = call.at_rest();
  if (!call.resting_) restless_.push_back(call);
  engine_.post(call);
  MailSender* sender = std::exchange(call.mail_sender_, nullptr);
  if (!failure_.ok()) sender = nullptr;  // nothing can be sent any more, and the sender may be destroyed
  const bool is_left_at_peer = call.at_peer_ && !call.answered_;
  if (sender != nullptr && call.turn_ >= 0 && is_left_at_peer) {
    call_slots_[slot_of(call.number_)].mail_sender = sender;
  }
  release_slot(call);
  if (sender != nullptr) sender->on_end(call, !is_left_at_peer);
}

void Connection::release_slot(Call& call) noexcept {
  if (!call.at_peer_) return;
  CallSlot& slot = call_slots_[slot_of(call.number_)];
  if (slot.number != call.number_) return;
  slot.call = nullptr;
  if (call.answered_) return free_slot(call.number_);
  slot.is_told = call.answer == Call::Answer::kNone && call.status_.ok();
  num_told_ += slot.is_told ? 1 : 0;
}

void Connection::free_slot(uint32_t number) noexcept {
  CallSlot& slot = call_slots_[slot_of(number)];
  ++num_answers_;
  num_told_ -= slot.is_told ? 1 : 0;
  slot.taken = slot.is_told = false;
  slot.call = nullptr;
  slot.mail_sender = nullptr;
  free_slots_.push_back(slot_of(number));
  launch_waiting();
}

void Connection::cancel(Call& call) noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([&] {
    call.given_up_ = true;
    if (!call.begun_ || call.is_final_) return;
    give_up(call, cancelled());
  });
}

void Connection::accept(Call& call, std::span<const Buffer> buffers, std::span<Owner> owners) noexcept {
  engine_.exclusively([&] { call.reply_.accept(buffers, owners); });
}

void Connection::decline(Call& call, Status reason) noexcept {
  engine_.exclusively([&] {
    if (call.begun_ && !call.is_final_) finish(call, std::move(reason));
  });
}

void Connection::give_up(Call& call, Status why) noexcept {
  const bool is_at_peer = call.at_peer_ && failure_.ok();
  const transport::CallHeader message = header_of(transport::MessageKind::kCancel, call.number_);
  finish(call, std::move(why));
  if (is_at_peer && !engine_.messenger().transport().withdraw(peer_, message)) send_control(message);
}

void Connection::tick(Clock::time_point now) noexcept {
  release_rested();
  look_after_closing(now);
  if (!failure_.ok()) {
    one_sided_.initiator().tick(now);
    return send_delayed_close();
  }
  if (watches_socket_ && now >= next_look_) {
    next_look_ = now + kLookInterval;
    if (has_peer_hung_up()) {
      if (has_hung_up_) {
        return fail(Status(ErrorCode::kPeerLost, "'" + identity_.name + "' is gone: its socket was closed"));
      }
      has_hung_up_ = true;
      next_look_ = now + kHangUpGrace;
    }
  }
  one_sided_.initiator().tick(now);
  tells_deadlines_ = !engine_.messenger().transport().can_withdraw(peer_);
  if (num_calls_ == 0) return;
  const auto end_if_late = [&](Call& call) {
    if (call.deadline_ == Clock::time_point{}) {
      call.deadline_ = now + std::min<Clock::duration>(call.timeout, std::chrono::hours(24 * 365));
    }
    if (now < call.deadline_) return;
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(call.timeout);
    const std::string in_time = std::string(call.request.name()) + "' within " + std::to_string(took.count()) + " ms";
    give_up(call, Status(ErrorCode::kTimeout,
                         "'" + identity_.name + "' has not " +
                             (call.is_exposing_ ? "copied the CUDA tensors of '" + in_time + ": its stream is busy"
                                                : "answered '" + in_time)));
  };
  for (CallSlot& slot : call_slots_) {
    if (slot.call != nullptr) end_if_late(*slot.call);
  }
  for_each_waiting(end_if_late);
}

bool Connection::has_peer_hung_up() const noexcept {
  pollfd socket{.fd = socket_.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
  return poll(&socket, 1, 0) > 0;
}

// The action may end the call that it receives.
template <typename Action>
void Connection::for_each_waiting(Action action) noexcept {
  const auto visit = [&](IntrusiveList<Call>& list) {
    for (Call* call = list.front(); call != nullptr;) {
      Call* next = list.next(*call);
      action(*call);
      call = next;
    }
  };
  visit(awaiting_flags_);
  visit(waiting_);
  for (const auto& [function, sender] : mail_senders_) visit(sender->waiting());
}

void Connection::end_waiting(const Status& reason) noexcept {
  for_each_waiting([&](Call& call) { finish(call, reason.clone()); });
}

void Connection::release_rested() noexcept {
  for (Call* call = restless_.front(); call != nullptr;) {
    Call* next = restless_.next(*call);
    if (call->finished() && call->at_rest()) {
      call->unlink();
      call->resting_ = true;
      engine_.post(*call);
    }
    call = next;
  }
}

void Connection::fail(const Status& reason) noexcept {
  if (!failure_.ok()) return;
  has_drained_ = core_.is_through_with(*this);
  failure_ = reason.clone();
  socket_ = FileDescriptor();
  engine_.messenger().detach(identity_.own_key);
  for (CallSlot& slot : call_slots_) {
    if (slot.call == nullptr) continue;
    slot.call->is_exposing_ ? slot.call->finish_answered() : finish(*slot.call, failure_.clone());
  }
  end_waiting(failure_);
  for (PeerCallSlot& slot : peer_call_slots_) {
    if (slot.invocation != nullptr) core_.on_caller_lost(*std::exchange(slot.invocation, nullptr));
  }
  num_invocations_ = num_told_ = 0;
  one_sided_.fail(failure_);
  core_.on_lost(*this);
}

void Connection::give_back() noexcept {
  call_slots_ = {};
  free_slots_ = {};
  peer_call_slots_ = {};
  mail_senders_.clear();
  latest_mail_sender_ = nullptr;
}

void Connection::on_transport_gone() noexcept {
  one_sided_.on_transport_gone();
  while (Call* call = restless_.pop_front()) {
    call->resting_ = true;
    engine_.post(*call);
  }
}

void Connection::send_control(const transport::CallHeader& message) noexcept {
  if (engine_.messenger().is_lost(peer_)) return;
  [[maybe_unused]] const auto sent = engine_.messenger().transport().send(peer_, message, {}, transport::unattended);
}

void Connection::drop(const transport::Payload& payload) noexcept {
  messaging::drop_payload(engine_.messenger(), payload);
}

}  // namespace axon::rpc
