// The callee's side of a connection.
#include <algorithm>

#include "rpc/core/connection.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon::rpc {

// Clocks tick in milliseconds, and callers look at theirs every ten.
static constexpr std::chrono::milliseconds kDeadlineMargin{20};

// Numbers wrap: "later" means less than half the range ahead.
static bool is_later(uint32_t left, uint32_t right) noexcept {
  return static_cast<int32_t>(left - right) > 0;
}

// The one that a message belongs to: a new one for a number that has not been there. Null if it comes late.
Invocation* Connection::invocation_for(const transport::MessageHeader& header) noexcept {
  PeerCallSlot& slot = peer_call_slots_[slot_of(header.sequence)];
  if (slot.invocation != nullptr && slot.number == header.sequence) return slot.invocation;
  if (!is_later(header.sequence, slot.number)) return nullptr;
  if (slot.invocation != nullptr) {
    if (slot.invocation->has_header_frame_) return nullptr;  // the caller has given away a slot that is taken
    core_.recycle(*std::exchange(slot.invocation, nullptr));
    --num_invocations_;
  }
  Invocation& invocation = core_.take_invocation();
  if (invocation.connection_.get() != this) invocation.connection_ = shared_from_this();
  invocation.number_ = header.sequence;
  invocation.comes_late_ = closes_at_.has_value();
  invocation.arguments_.open(engine_, invocation, core_.limits());
  slot = {&invocation, header.sequence};
  ++num_invocations_;
  return &invocation;
}

void Connection::on_call(const transport::MessageHeader& header, const transport::Payload& payload) noexcept {
  Invocation* invocation = invocation_for(header);
  if (invocation == nullptr) return drop(payload);
  if (header.fingerprint.operation == transport::OperationKind::kInvokePayload)
    return invocation->arguments_.on_payload_frame(header, payload);
  if (invocation->has_header_frame_) return drop(payload);  // it may be in its function's hands
  invocation->kind_ = header.fingerprint.operation;
  invocation->has_header_frame_ = true;
  if (header.destination != 0) note_deadline(*invocation, header);
  invocation->arguments_.on_header_frame(payload);
}

// It may have waited long in the network, or here, before it was read.
void Connection::note_deadline(Invocation& invocation, const transport::MessageHeader& header) noexcept {
  const Clock::time_point now = Clock::now();
  const std::chrono::milliseconds left =
      std::chrono::milliseconds(header.destination) - delays_.delay_of(header.source, now);
  invocation.gives_up_at_ = now + left + kDeadlineMargin;
}

// It was given up before it was read here. It is answered all the same, which gives its slot back.
void Connection::on_withdrawn(const transport::MessageHeader& header) noexcept {
  Invocation* const invocation = invocation_for(header);
  if (invocation == nullptr || invocation->has_header_frame_) return;
  invocation->kind_ = transport::OperationKind::kInvoke;
  invocation->has_header_frame_ = true;
  invocation->arguments_.abandon();
  invocation->fail_as_late();
}

void Connection::on_cancel(const transport::MessageHeader& header) noexcept {
  const PeerCallSlot& slot = peer_call_slots_[slot_of(header.sequence)];
  if (slot.invocation != nullptr && slot.number == header.sequence) core_.on_cancelled(*slot.invocation);
}

// Its slot is the caller's again as soon as the answer leaves; the memory is ours until it has been fetched.
void Connection::answer(Invocation& invocation) noexcept {
  if (!failure_.ok()) return core_.recycle(invocation);
  PeerCallSlot& slot = peer_call_slots_[slot_of(invocation.number_)];
  if (slot.invocation != &invocation) return core_.recycle(invocation);
  slot.invocation = nullptr;
  --num_invocations_;
  const transport::MessageHeader header = header_of(invocation.answer_kind_, invocation.number_);
  const Status sent =
      invocation.answer.send(engine_.messenger(), peer_, header, transport::OperationKind::kReplyPayload);
  num_answered_ += sent.ok() ? 1 : 0;
  core_.recycle(invocation);
}

}  // namespace axon::rpc
