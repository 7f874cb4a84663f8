// A gate that a runtime's functions pass when they begin and end, so that closing the runtime can wait for running
// functions. The objects to which they refer may be destroyed afterwards.
//
//   if (const Gate::Pass pass(gate); pass.is_open()) run();
//   gate.close(deadline);  // false: some functions have not ended by then
#pragma once

#include <utility>

#include "base/sync.hpp"
#include "engine/sleepers.hpp"

namespace axon::library {

class Gate {
 public:
  class Pass {
   public:
    explicit Pass(Gate& gate) noexcept : gate_(gate), outer_(std::exchange(innermost(), this)) {
      gate_.num_inside_.fetch_add(1);
      is_open_ = !gate_.is_closed_.load();
    }
    ~Pass() {
      innermost() = outer_;
      gate_.num_inside_.fetch_sub(1);
      gate_.leaving_.notify();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    bool is_open() const noexcept { return is_open_; }

   private:
    friend class Gate;
    Gate& gate_;
    Pass* const outer_;
    bool is_open_ = false;
  };

  // May be called from within a function, too: it does not wait for itself.
  bool close(sync::Clock::time_point deadline) noexcept {
    is_closed_.store(true);
    uint32_t num_own = 0;
    for (const Pass* pass = innermost(); pass != nullptr; pass = pass->outer_) num_own += &pass->gate_ == this ? 1 : 0;
    const auto others_are_out = [&] { return num_inside_.load() <= num_own; };
    if (!others_are_out()) leaving_.sleep_until(deadline, others_are_out);
    return others_are_out();
  }

 private:
  // The innermost function that this thread is running.
  static Pass*& innermost() noexcept {
    static thread_local Pass* pass = nullptr;
    return pass;
  }

  sync::atomic<bool> is_closed_{false};
  sync::atomic<uint32_t> num_inside_{0};
  engine::Sleepers leaving_;
};

}  // namespace axon::library
