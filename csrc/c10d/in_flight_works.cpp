#include "c10d/in_flight_works.hpp"

#include "c10d/work.hpp"

namespace axon::c10d_backend {

// Never destroyed: at exit CUDA may end first, and the tensors need it.
InFlightWorks& InFlightWorks::instance() {
  static auto* works = new InFlightWorks;
  return *works;
}

void InFlightWorks::keep(c10::intrusive_ptr<AxonWork> work) {
  const std::lock_guard lock(mutex_);
  AxonWork* const key = work.get();
  kept_.emplace(key, std::move(work));
}

void InFlightWorks::release(AxonWork& work) {
  c10::intrusive_ptr<AxonWork> last_reference;  // released outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(&work);
  if (found == kept_.end()) return;
  last_reference = std::move(found->second);
  kept_.erase(found);
}

void InFlightWorks::discard(c10::intrusive_ptr<AxonWork> work) {
  const std::lock_guard lock(mutex_);
  discarded_.push_back(std::move(work));
}

void InFlightWorks::clear() {
  Works gone;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  gone.swap(discarded_);
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    if (entry->second->isCompleted()) {
      gone.push_back(std::move(entry->second));
      entry = kept_.erase(entry);
    } else {
      ++entry;
    }
  }
}

}  // namespace axon::c10d_backend
