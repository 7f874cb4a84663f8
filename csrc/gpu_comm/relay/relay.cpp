#include "gpu_comm/relay/relay.hpp"

#include <new>
#include <utility>

namespace axon::gpu_comm {

Result<std::unique_ptr<const ExpiredWait>> ExpiredWait::open() {
  PinnedPool& pool = PinnedPool::current();
  Result<PinnedPool::Allocation> allocation = pool.take(sizeof(uint32_t));
  if (!allocation.ok()) return std::move(allocation.status());
  new (allocation.value().memory.data()) std::atomic<uint32_t>(0);
  return std::unique_ptr<const ExpiredWait>(new ExpiredWait(pool, std::move(allocation).value()));
}

ExpiredWait::~ExpiredWait() {
  pool_.give_back(std::move(allocation_));
}

std::atomic<uint32_t>& ExpiredWait::flag() const noexcept {
  return *reinterpret_cast<std::atomic<uint32_t>*>(allocation_.memory.data());
}

Result<std::shared_ptr<Relay>> Relay::open(std::unique_ptr<RelayPlan> plan, const ExpiredWait& expired) {
  PinnedPool& pool = PinnedPool::current();
  Result<PinnedPool::Allocation> allocation = pool.take(kHeaderBytes + plan->num_slots() * plan->slot_bytes());
  if (!allocation.ok()) return std::move(allocation.status());
  return std::shared_ptr<Relay>(new Relay(std::move(plan), expired, pool, std::move(allocation).value()));
}

Relay::Relay(std::unique_ptr<RelayPlan> plan, const ExpiredWait& expired, PinnedPool& pool,
             PinnedPool::Allocation allocation) noexcept
    : plan_(std::move(plan)),
      num_slots_(plan_->num_slots()),
      has_expired_(expired.flag()),
      pool_(pool),
      allocation_(std::move(allocation)) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  new (allocation_.memory.data()) Header{};
  if (!plan_->only_receives()) return;
  for (size_t slot = 0; slot < num_slots_; ++slot) header().filled[slot] = static_cast<uint32_t>(slot + 1);
}

Relay::~Relay() {
  pool_.give_back(std::move(allocation_));
}

std::byte* Relay::slot_of(size_t segment) const noexcept {
  return allocation_.memory.data() + kHeaderBytes + segment % num_slots_ * plan_->slot_bytes();
}

engine::DeviceSegments::Buffers Relay::buffers(size_t segment) noexcept {
  const SlotBuffers& buffers = engines_buffers_[segment % num_slots_] = plan_->buffers(segment, slot_of(segment));
  return {.kind = buffers.kind, .inputs = buffers.inputs, .outputs = buffers.outputs};
}

void Relay::give_back(size_t segment) noexcept {
  header().returned[segment % num_slots_].store(static_cast<uint32_t>(segment + 1), std::memory_order_release);
}

void Relay::fail() noexcept {
  for (std::atomic<uint32_t>& returned : header().returned) {
    returned.store(kernels::kSlotFailed, std::memory_order_release);
  }
}

Status Relay::enqueue_first(cuda::StreamView stream) {
  AXON_TRY(plan_->enqueue_start(stream));
  for (size_t segment = 0; segment < num_slots_ && !plan_->only_receives(); ++segment) {
    AXON_TRY(enqueue_fill(segment, stream));
  }
  return stream.record(allocation_.last_use);  // the others may never be enqueued
}

Result<bool> Relay::enqueue_next(cuda::StreamView stream) {
  const size_t segment = next_taken_++;
  AXON_TRY(enqueue_take(segment, stream));
  const size_t filled = segment + num_slots_;
  if (filled < count() && !plan_->only_receives()) AXON_TRY(enqueue_fill(filled, stream));
  if (next_taken_ < count()) return true;
  AXON_TRY(stream.record(allocation_.last_use));
  return false;
}

static uint32_t* word_of(std::atomic<uint32_t>& flag) noexcept {
  return reinterpret_cast<uint32_t*>(&flag);
}

void Relay::wait_for(size_t segment, kernels::SlotCall& call) const noexcept {
  call.awaited_flag = word_of(header().returned[segment % num_slots_]);
  call.awaited = static_cast<uint32_t>(segment + 1);
  call.has_expired = word_of(has_expired_);
  call.longest_wait_ns = static_cast<uint64_t>(plan_->longest_wait().count());
}

void Relay::hand_over(size_t segment, kernels::SlotCall& call) const noexcept {
  call.flag = word_of(header().filled[segment % num_slots_]);
  call.value = static_cast<uint32_t>(segment + 1);
}

Result<kernels::SlotCall> Relay::prepare_fill(size_t segment, RelayPlan::Copies& copies, cuda::StreamView stream) {
  AXON_TRY(plan_->prepare(segment, slot_of(segment), copies, stream));
  kernels::SlotCall call{.copies = copies};
  if (segment >= num_slots_ && !plan_->has_results(segment - num_slots_)) wait_for(segment - num_slots_, call);
  hand_over(segment, call);
  return call;
}

kernels::SlotCall Relay::prepare_take(size_t segment, RelayPlan::Copies& copies) {
  plan_->add_results(segment, slot_of(segment), copies);
  kernels::SlotCall call{.copies = copies};
  wait_for(segment, call);
  if (plan_->only_receives() && segment + num_slots_ < count()) hand_over(segment + num_slots_, call);
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
  return stream.record(allocation_.last_use);
}

}  // namespace axon::gpu_comm
