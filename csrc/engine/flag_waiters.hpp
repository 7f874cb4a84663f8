// Items that wait for flags in memory that a device writes. Only polling shows that a flag is set.
//
//   flag_waiters.add(item, flag, value);   // once the flag has this value, run_set() calls item.on_flag_set()
//   flag_waiters.add(item, flags, value);  // the same for any of these flags
//   item.unlink();                         // … unless this came first
//
// Owned by the engine; progress owner only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/intrusive_list.hpp"

namespace axon::engine {

// Waits until its flag is set or it is unlinked. An item waits for one flag at a time, or for any of several that
// follow one another in memory, which are scanned.
class FlagWaiter : public ListNode<FlagWaiter> {
 public:
  // Called after the flag has reached the awaited value, or after the transport is closed.
  virtual void on_flag_set() noexcept = 0;

  void set_flag(const std::atomic<uint32_t>& flag, uint32_t awaited) noexcept {
    flag_ = &flag;
    num_flags_ = 0;
    awaited_ = awaited;
  }
  void set_flags(std::span<const std::atomic<uint32_t>> flags, uint32_t awaited) noexcept {
    flag_ = flags.data();
    num_flags_ = flags.size();
    awaited_ = awaited;
  }
  // One flag is set from the awaited value on, which may be a count that wraps around; of several, any that has exactly
  // this value. Acquire: pairs with the device's release, so that what it wrote before is visible.
  bool is_flag_set() const noexcept {
    if (num_flags_ == 0) [[likely]]
      return static_cast<int32_t>(flag_->load(std::memory_order_acquire) - awaited_) >= 0;
    for (size_t i = 0; i < num_flags_; ++i) {
      if (flag_[i].load(std::memory_order_acquire) == awaited_) return true;
    }
    return false;
  }

 protected:
  ~FlagWaiter() = default;

 private:
  const std::atomic<uint32_t>* flag_ = nullptr;
  size_t num_flags_ = 0;  // 0: a single one
  uint32_t awaited_ = 1;
};

class FlagWaiters {
 public:
  bool empty() const noexcept { return waiting_.empty(); }

  void add(FlagWaiter& item, const std::atomic<uint32_t>& flag, uint32_t awaited) noexcept {
    item.set_flag(flag, awaited);
    waiting_.push_back(item);
  }

  void add(FlagWaiter& item, std::span<const std::atomic<uint32_t>> flags, uint32_t awaited) noexcept {
    item.set_flags(flags, awaited);
    waiting_.push_back(item);
  }

  // Calls the items whose flags are set, and returns their number. An item's callback may unlink other items.
  size_t run_set() noexcept {
    if (waiting_.empty()) [[likely]]
      return 0;
    IntrusiveList<FlagWaiter> ready;
    for (FlagWaiter* item = waiting_.front(); item != nullptr;) {
      FlagWaiter* const next = waiting_.next(*item);
      if (item->is_flag_set()) {
        item->unlink();
        ready.push_back(*item);
      }
      item = next;
    }
    size_t num_run = 0;
    for (; FlagWaiter* item = ready.pop_front(); ++num_run) item->on_flag_set();
    return num_run;
  }

  // Calls all items: the transport is closed.
  void run_all() noexcept {
    while (FlagWaiter* item = waiting_.pop_front()) item->on_flag_set();
  }

 private:
  IntrusiveList<FlagWaiter> waiting_;
};

}  // namespace axon::engine
