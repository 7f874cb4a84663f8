#include "stream/launch_ledger.hpp"

#include <algorithm>
#include <utility>

#include "cuda/capture.hpp"

namespace axon {

static bool holds_kernels(const std::weak_ptr<void>& graphs) {
  return graphs.use_count() > 1;
}

void LaunchLedger::note(const StreamOrder& order, const Lock&) {
  Holders& holders = groups_[&order];
  if (holders.streams.size() != order.streams().size()) holders.streams = order.streams();
  if (holders.graphs.expired()) holders.graphs = order.graphs();
}

void LaunchLedger::forget(const StreamOrder& order, const Lock&) {
  const auto found = groups_.find(&order);
  if (found == groups_.end()) return;
  std::erase_if(graphs_left_, [](const std::weak_ptr<void>& graphs) { return !holds_kernels(graphs); });
  if (holds_kernels(found->second.graphs)) graphs_left_.push_back(std::move(found->second.graphs));
  groups_.erase(found);
}

bool LaunchLedger::is_idle(const Lock&) const {
  const RelaxedCapture beside_captures;
  const auto is_empty = [](StreamView stream) {
    const Result<bool> capturing = is_capturing(stream);
    return capturing.ok() && !capturing.value() && stream.is_empty();
  };
  return std::ranges::none_of(graphs_left_, holds_kernels) && std::ranges::all_of(groups_, [&](const auto& group) {
           const Holders& holders = group.second;
           return !holds_kernels(holders.graphs) && std::ranges::all_of(holders.streams, is_empty);
         });
}

}  // namespace axon
