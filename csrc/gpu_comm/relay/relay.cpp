#include "gpu_comm/relay/relay.hpp"

#include <new>
#include <utility>

namespace axon::gpu_comm {

Result<std::shared_ptr<const ExpiredWait>> ExpiredWait::open() {
  Result<std::shared_ptr<PinnedBlock>> memory = PinnedBlock::take(sizeof(uint32_t));
  if (!memory.ok()) return std::move(memory.status());
  new (memory.value()->data()) std::atomic<uint32_t>(0);
  return std::shared_ptr<const ExpiredWait>(new ExpiredWait(std::move(memory).value()));
}

std::atomic<uint32_t>& ExpiredWait::flag() const noexcept {
  return *reinterpret_cast<std::atomic<uint32_t>*>(memory_->data());
}

Result<std::shared_ptr<Relay>> Relay::open(std::unique_ptr<RelayPlan> plan, std::shared_ptr<const ExpiredWait> expired,
                                           const RelayCapture& capture) {
  const size_t num_slot_bytes = capture.slots == nullptr ? slots_bytes_of(*plan) : 0;
  Result<std::shared_ptr<PinnedBlock>> memory = PinnedBlock::take(kHeaderBytes + num_slot_bytes);
  if (!memory.ok()) return std::move(memory.status());
  return std::shared_ptr<Relay>(new Relay(std::move(plan), std::move(expired), capture, std::move(memory).value()));
}

Relay::Relay(std::unique_ptr<RelayPlan> plan, std::shared_ptr<const ExpiredWait> expired, const RelayCapture& capture,
             std::shared_ptr<PinnedBlock> memory) noexcept
    : plan_(std::move(plan)),
      num_slots_(plan_->num_slots()),
      expired_(std::move(expired)),
      trigger_(capture.trigger),
      memory_(std::move(memory)),
      shared_slots_(capture.slots) {
  static_assert(sizeof(Header) <= kHeaderBytes && sizeof(Header::Slot) == sizeof(kernels::SlotState));
  static_assert(kDevicesTurn == kernels::SlotState::kDevicesTurn && kEnginesTurn == kernels::SlotState::kHostsTurn);
  new (memory_->data()) Header{};
  if (!plan_->only_receives() || is_captured()) return;
  for (size_t slot = 0; slot < num_slots_; ++slot) header().slots[slot].turn = kEnginesTurn;
}

std::byte* Relay::slot_of(size_t segment) const noexcept {
  std::byte* const slots = shared_slots_ == nullptr ? memory_->data() + kHeaderBytes : shared_slots_->data();
  return slots + segment % num_slots_ * plan_->slot_bytes();
}

engine::DeviceSegments::Buffers Relay::buffers(size_t segment) noexcept {
  const SlotBuffers& buffers = engines_buffers_[segment % num_slots_] = plan_->buffers(segment, slot_of(segment));
  return {.kind = buffers.kind, .inputs = buffers.inputs, .outputs = buffers.outputs};
}

void Relay::give_back(size_t segment) noexcept {
  header().slots[segment % num_slots_].turn.store(kDevicesTurn, std::memory_order_release);
}

void Relay::fail() noexcept {
  for (Header::Slot& slot : header().slots) slot.has_failed.store(1, std::memory_order_release);
}

static uint32_t* word_of(std::atomic<uint32_t>& flag) noexcept {
  return reinterpret_cast<uint32_t*>(&flag);
}

kernels::SlotState* Relay::state_of(size_t segment) const noexcept {
  return reinterpret_cast<kernels::SlotState*>(&header().slots[segment % num_slots_]);
}

kernels::Trigger Relay::trigger() const noexcept {
  kernels::Trigger trigger = trigger_;
  trigger.has_failed = &state_of(0)->has_failed;
  return trigger;
}

kernels::SlotCall Relay::call_with(const RelayPlan::Copies& copies) const noexcept {
  return {.copies = copies,
          .has_expired = word_of(expired_->flag()),
          .longest_wait_ns = static_cast<uint64_t>(plan_->longest_wait().count())};
}

Status Relay::enqueue_first(cuda::StreamView stream) {
  AXON_TRY(plan_->enqueue_start(stream));
  if (plan_->only_receives()) {
    if (is_captured()) AXON_TRY(enqueue_trigger(stream));
  } else {
    for (size_t segment = 0; segment < num_slots_; ++segment) AXON_TRY(enqueue_fill(segment, stream));
  }
  return note_last_use(stream);  // the others may never be enqueued
}

// All slots are free when a graph is launched: its previous launch has taken what they held.
Status Relay::enqueue_trigger(cuda::StreamView stream) {
  kernels::SlotCall call = call_with({});
  call.handed_over = state_of(0);
  call.num_handed_over = static_cast<int>(num_slots_);
  call.trigger = trigger();
  return kernels::move_slot(call, stream);
}

Result<bool> Relay::enqueue_next(cuda::StreamView stream) {
  const size_t segment = next_taken_++;
  AXON_TRY(enqueue_take(segment, stream));
  const size_t filled = segment + num_slots_;
  if (filled < count() && !plan_->only_receives()) AXON_TRY(enqueue_fill(filled, stream));
  if (next_taken_ < count()) return true;
  AXON_TRY(note_last_use(stream));
  return false;
}

// The memory of a captured relay is in use until its graph is gone, together with all launches.
Status Relay::note_last_use(cuda::StreamView stream) {
  return is_captured() ? Status() : stream.record(memory_->last_use());
}

// A slot whose results the stream has taken is free. Others may still be in transit, even from the graph's previous
// launch.
Result<kernels::SlotCall> Relay::prepare_fill(size_t segment, RelayPlan::Copies& copies, cuda::StreamView stream) {
  AXON_TRY(plan_->prepare(segment, slot_of(segment), copies, stream));
  kernels::SlotCall call = call_with(copies);
  const bool is_used = segment >= num_slots_ || is_captured();
  if (is_used && !plan_->has_results(segment)) call.awaited = state_of(segment);
  call.handed_over = state_of(segment);
  if (segment == 0) call.trigger = trigger();
  return call;
}

kernels::SlotCall Relay::prepare_take(size_t segment, RelayPlan::Copies& copies) {
  plan_->add_results(segment, slot_of(segment), copies);
  kernels::SlotCall call = call_with(copies);
  call.awaited = state_of(segment);
  if (plan_->only_receives() && segment + num_slots_ < count()) call.handed_over = state_of(segment);
  return call;
}

Status Relay::enqueue_fill(size_t segment, cuda::StreamView stream) {
  RelayPlan::Copies copies;
  const Result<kernels::SlotCall> call = prepare_fill(segment, copies, stream);
  if (!call.ok()) return call.status().clone();
  return kernels::move_slot(call.value(), stream);
}

Status Relay::enqueue_take(size_t segment, cuda::StreamView stream) {
  if (!plan_->has_results(segment)) return Status();
  RelayPlan::Copies copies;
  AXON_TRY(kernels::move_slot(prepare_take(segment, copies), stream));
  return plan_->finish(segment, slot_of(segment), stream);
}

Status Relay::enqueue(cuda::StreamView stream) {
  if (count() > 1 || plan_->only_receives() || !plan_->has_results(0)) {
    AXON_TRY(enqueue_first(stream));
    for (bool has_more = true; has_more;) {
      const Result<bool> next = enqueue_next(stream);
      if (!next.ok()) return next.status().clone();
      has_more = next.value();
    }
    return Status();
  }
  AXON_TRY(plan_->enqueue_start(stream));
  RelayPlan::Copies to_slot;
  RelayPlan::Copies from_slot;
  const Result<kernels::SlotCall> fill = prepare_fill(0, to_slot, stream);
  if (!fill.ok()) return fill.status().clone();
  AXON_TRY(kernels::move_slot_there_and_back(fill.value(), prepare_take(0, from_slot), stream));
  AXON_TRY(plan_->finish(0, slot_of(0), stream));
  return note_last_use(stream);
}

}  // namespace axon::gpu_comm
