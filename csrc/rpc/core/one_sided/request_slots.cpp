#include "rpc/core/one_sided/request_slots.hpp"

#include "rpc/core/one_sided/initiator.hpp"

namespace axon::rpc {

RequestSlots::InFlight::InFlight(Slot& of) noexcept : transport::Completion{&Initiator::on_transferred}, slot(of) {}

RequestSlots::Slot& RequestSlots::take(Transfer& transfer) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.push_back(std::make_unique<Slot>(initiator_));
    slots_.back()->number = free_.back();
  }
  Slot& slot = *slots_[free_.back()];
  free_.pop_back();
  slot.number += kWindow;
  slot.transfer = &transfer;
  slot.is_taken = true;
  slot.is_answered = false;
  slot.num_bytes = 0;
  slot.num_blocks = 0;
  slot.opens = false;
  ++transfer.num_requests_;
  return slot;
}

void RequestSlots::give_back(Slot& slot) noexcept {
  slot.transfer = nullptr;
  slot.is_taken = false;
  slot.frame = {};
  free_.push_back(slot.number % kWindow);
}

RequestSlots::Slot* RequestSlots::awaiting(uint32_t number) noexcept {
  const uint32_t index = number % kWindow;
  if (index >= slots_.size()) return nullptr;
  Slot& slot = *slots_[index];
  const bool is_awaited = slot.is_taken && slot.number == number && !slot.is_answered;
  return is_awaited && !slot.fetching.is_under_way ? &slot : nullptr;
}

void RequestSlots::detach(const Transfer& transfer) noexcept {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->transfer == &transfer && !slot->is_in_flight()) slot->transfer = nullptr;
  }
}

void RequestSlots::begin(InFlight& in_flight) noexcept {
  in_flight.is_under_way = true;
  ++num_in_flight_;
  ++in_flight.slot.transfer->num_in_flight_;
}

void RequestSlots::end(InFlight& in_flight) noexcept {
  in_flight.is_under_way = false;
  --num_in_flight_;
  Slot& slot = in_flight.slot;
  --slot.transfer->num_in_flight_;
  if (slot.transfer->is_final_ && !slot.is_in_flight()) slot.transfer = nullptr;
}

void RequestSlots::end_all() noexcept {
  for (const std::unique_ptr<Slot>& slot : slots_) {
    for (InFlight* in_flight : {&slot->sending, &slot->fetching}) {
      if (in_flight->is_under_way) end(*in_flight);
    }
  }
}

}  // namespace axon::rpc
