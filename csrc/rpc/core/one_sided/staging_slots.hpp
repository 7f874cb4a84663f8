// Slots of host memory through which a device's memory passes on its way to peers and from them. Few and of fixed size,
// so they bound what is pinned. A transfer that finds none waits for its turn.
//
//   StagingSlots::Waiter waiter;                         // derived: on_slot() takes a slot
//   if (std::optional<Slot> slot = slots.take(waiter)) … // none is free: on_slot() is called later
//   slots.give_back(*slot);
//
// Owned by a device. Progress owner only, except for the constructor.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/intrusive_list.hpp"
#include "memory/buffer.hpp"
#include "memory/owner.hpp"

namespace axon::rpc {

// Transfers of device memory that does not go directly are cut into messages of at most this.
inline constexpr size_t kSegmentNumBytes = size_t{4} << 20;

class StagingSlots {
 public:
  class Waiter : public ListNode<Waiter> {
   public:
    // A slot is free: take() succeeds now.
    virtual void on_slot() noexcept = 0;

   protected:
    ~Waiter() = default;
  };

  // Each buffer has kSegmentNumBytes. The memory is kept as long as this.
  StagingSlots(std::vector<Buffer> slots, Owner memory) noexcept
      : free_(std::move(slots)), memory_(std::move(memory)) {}
  StagingSlots(const StagingSlots&) = delete;
  StagingSlots& operator=(const StagingSlots&) = delete;

  // Returns nothing while none is free, or others wait; the waiter's turn comes then.
  std::optional<Buffer> take(Waiter& waiter) noexcept {
    if (free_.empty() || (!waiters_.empty() && served_ != &waiter)) {
      if (!waiter.linked()) waiters_.push_back(waiter);
      return std::nullopt;
    }
    const Buffer slot = free_.back();
    free_.pop_back();
    return slot;
  }

  // Nested calls, from waiters that end at once, leave it to the outer one.
  void give_back(Buffer slot) noexcept {
    free_.push_back({.data = slot.data, .num_bytes = kSegmentNumBytes});
    if (std::exchange(is_serving_, true)) return;
    while (!free_.empty()) {
      served_ = waiters_.pop_front();
      if (served_ == nullptr) break;
      served_->on_slot();
    }
    served_ = nullptr;
    is_serving_ = false;
  }

 private:
  std::vector<Buffer> free_;
  const Owner memory_;
  IntrusiveList<Waiter> waiters_;
  Waiter* served_ = nullptr;  // whose turn it is
  bool is_serving_ = false;
};

}  // namespace axon::rpc
