#include "transport/rails/rail_events.hpp"

#include <cerrno>
#include <utility>

#include "base/event_descriptor.hpp"
#include "base/resources.hpp"

namespace axon::transport {

// Strangers cause refusals. More than these are not reported while the progress owner takes none.
static constexpr size_t kMostWithRefusals = 1024;

Status RailEvents::open() {
  wake_event_ = open_event();
  return wake_event_.valid() ? Status() : out_of("eventfd", errno);
}

void RailEvents::push(RailEvent event) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (event.kind == RailEvent::Kind::kRefused && events_.size() >= kMostWithRefusals) return;
    events_.push_back(std::move(event));
    any_.store(true);
  }
  if (!armed_.exchange(false)) return;
  set_event(wake_event_);
}

std::vector<RailEvent> RailEvents::take() noexcept {
  const std::lock_guard lock(mutex_);
  any_.store(false, std::memory_order_relaxed);
  return std::exchange(events_, {});
}

bool RailEvents::arm() noexcept {
  clear_event(wake_event_);
  armed_.store(true);
  return !any_.load();
}

}  // namespace axon::transport
