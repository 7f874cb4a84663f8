// The callee's side of a connection.
#include <algorithm>

#include "base/wrapping.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon::rpc {

// Deadlines have milliseconds, and callers check theirs every ten.
static constexpr std::chrono::milliseconds kDeadlineMargin{20};

// Returns the invocation that a message belongs to, or a new one for a new number. Null if the message is outdated.
Invocation* Connection::invocation_for(const transport::CallHeader& header) noexcept {
  PeerCallSlot& slot = peer_call_slots_[slot_of(header.number)];
  if (slot.invocation != nullptr && slot.number == header.number) return slot.invocation;
  if (!is_later(header.number, slot.number)) return nullptr;
  if (slot.invocation != nullptr) {
    if (slot.invocation->has_header_frame_) return nullptr;  // the caller reused a slot that is still occupied
    core_.recycle(*std::exchange(slot.invocation, nullptr));
    --num_invocations_;
  }
  Invocation& invocation = core_.take_invocation();
  if (invocation.connection_.get() != this) invocation.connection_ = shared_from_this();
  invocation.number_ = header.number;
  invocation.comes_late_ = closes_at_.has_value();
  invocation.arguments_.open(engine_, invocation, core_.limits());
  slot = {&invocation, header.number};
  ++num_invocations_;
  return &invocation;
}

void Connection::on_call(const transport::CallHeader& header, const transport::Payload& payload) noexcept {
  Invocation* invocation = invocation_for(header);
  if (invocation == nullptr) return drop(payload);
  if (header.kind == transport::MessageKind::kInvokePayload)
    return invocation->arguments_.on_payload_frame(header, payload);
  if (invocation->has_header_frame_) return drop(payload);  // its function may be using it
  invocation->kind_ = header.kind;
  invocation->has_header_frame_ = true;
  if (header.remaining_ms != 0) note_deadline(*invocation, header);
  invocation->arguments_.on_header_frame(payload);
}

// The call may have waited long in the network, or here, before it was read.
void Connection::note_deadline(Invocation& invocation, const transport::CallHeader& header) noexcept {
  const Clock::time_point now = Clock::now();
  const std::chrono::milliseconds left =
      std::chrono::milliseconds(header.remaining_ms) - delays_.delay_of(header.sent_at_ms, now);
  invocation.gives_up_at_ = now + left + kDeadlineMargin;
}

// The caller gave up before the call was read here. It is answered nevertheless, which frees its slot.
void Connection::on_withdrawn(const transport::CallHeader& header) noexcept {
  Invocation* const invocation = invocation_for(header);
  if (invocation == nullptr || invocation->has_header_frame_) return;
  invocation->kind_ = transport::MessageKind::kInvoke;
  invocation->has_header_frame_ = true;
  invocation->arguments_.abandon();
  invocation->fail_as_given_up();
}

void Connection::on_cancel(const transport::CallHeader& header) noexcept {
  const PeerCallSlot& slot = peer_call_slots_[slot_of(header.number)];
  if (slot.invocation != nullptr && slot.number == header.number) core_.on_cancelled(*slot.invocation);
}

// The caller may reuse the slot as soon as the answer leaves. The answer's memory stays here until the peer has read
// it.
void Connection::answer(Invocation& invocation) noexcept {
  if (!failure_.ok()) return core_.recycle(invocation);
  PeerCallSlot& slot = peer_call_slots_[slot_of(invocation.number_)];
  if (slot.invocation != &invocation) return core_.recycle(invocation);
  slot.invocation = nullptr;
  --num_invocations_;
  const transport::CallHeader header = header_of(invocation.answer_kind_, invocation.number_);
  const Status sent = invocation.answer.send(engine_.messenger(), peer_, header, transport::MessageKind::kReplyPayload);
  num_answered_ += sent.ok() ? 1 : 0;
  core_.recycle(invocation);
}

}  // namespace axon::rpc
