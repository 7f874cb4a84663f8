#include "ipc/launch_ledger.hpp"

#include <algorithm>
#include <utility>

#include "cuda/capture.hpp"

namespace axon::ipc {

static bool hold_kernels(const std::weak_ptr<void>& graphs) {
  return graphs.use_count() > 1;
}

Status LaunchLedger::note(const StreamOrder& order, cuda::StreamView stream) {
  Result<bool> captured = is_capturing(stream);
  if (!captured.ok()) return std::move(captured.status());
  const std::lock_guard lock(mutex_);
  Holders& holders = groups_[&order];
  if (holders.graphs.expired()) holders.graphs = order.graphs();
  if (captured.value()) return Status();
  auto use = std::ranges::find_if(holders.uses, [&](const Use& each) { return each.stream.get() == stream.get(); });
  if (use == holders.uses.end()) {
    Result<cuda::Event> event = cuda::Event::create_untimed();
    if (!event.ok()) return std::move(event.status());
    use = holders.uses.insert(use, Use{stream, std::move(event).value()});
  }
  return stream.record(use->last);
}

static bool is_over(const auto& holders) {
  return !hold_kernels(holders.graphs) &&
         std::ranges::all_of(holders.uses, [](const auto& use) { return use.last.view().has_passed(); });
}

void LaunchLedger::drop_ended() {
  std::erase_if(former_, [](const Holders& holders) { return is_over(holders); });
}

void LaunchLedger::forget(const StreamOrder& order) {
  const cuda::RelaxedCapture beside_captures;
  const std::lock_guard lock(mutex_);
  drop_ended();
  const auto found = groups_.find(&order);
  if (found == groups_.end()) return;
  former_.push_back(std::move(found->second));
  groups_.erase(found);
}

bool LaunchLedger::is_idle() const {
  return former_.empty() && std::ranges::all_of(groups_, [](const auto& group) { return is_over(group.second); });
}

bool LaunchLedger::run_if_idle(const std::function<void()>& action) {
  const cuda::RelaxedCapture beside_captures;
  const std::unique_lock launch_lock(launching_, std::try_to_lock);
  if (!launch_lock.owns_lock()) return false;
  {
    const std::lock_guard lock(mutex_);
    drop_ended();
    if (held_.use_count() > 1 || !is_idle()) return false;
  }
  action();
  return true;
}

}  // namespace axon::ipc
