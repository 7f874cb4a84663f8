#include "base/interrupts.hpp"

#include <atomic>

namespace axon::interrupts {

static std::atomic<Check> current{nullptr};

void set_check(Check check) noexcept {
  current.store(check, std::memory_order_release);
}

bool are_pending() noexcept {
  const Check check = current.load(std::memory_order_acquire);
  return check != nullptr && check();
}

}  // namespace axon::interrupts
