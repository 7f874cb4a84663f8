#include "c10d/ephemeral_timeouts.hpp"

namespace axon::c10d_backend {

void EphemeralTimeouts::add(std::chrono::milliseconds extension) {
  if (extension.count() <= 0) return;
  const std::lock_guard lock(mutex_);
  extensions_.push_back({.timeout = extension});
  are_any_.store(true, std::memory_order_relaxed);
}

// A work without an owner has completed: a group keeps those in flight.
bool EphemeralTimeouts::Extension::has_ended() const {
  if (!has_begun) return false;
  const c10::intrusive_ptr<c10d::Work> work = first.lock();
  return !work || work->isCompleted();
}

std::chrono::milliseconds EphemeralTimeouts::for_work(const c10::intrusive_ptr<c10d::Work>& work) {
  const std::lock_guard lock(mutex_);
  std::erase_if(extensions_, [](const Extension& each) { return each.has_ended(); });
  are_any_.store(!extensions_.empty(), std::memory_order_relaxed);
  std::chrono::milliseconds sum{0};
  for (Extension& each : extensions_) {
    sum += each.timeout;
    if (each.has_begun) continue;
    each.has_begun = true;
    each.first = c10::weak_intrusive_ptr<c10d::Work>(work);
  }
  return sum;
}

}  // namespace axon::c10d_backend
