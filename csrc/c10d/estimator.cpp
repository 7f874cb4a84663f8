#include "c10d/estimator.hpp"

#include <bit>
#include <utility>

namespace axon::c10d_backend {

void Estimator::note(const Call& call, std::shared_ptr<const Times> times) {
  const std::lock_guard lock(mutex_);
  timed_[{call.kind, call.device}][std::bit_width(call.num_bytes)] = {call.num_bytes, std::move(times)};
}

std::optional<Estimator::Microseconds> Estimator::estimate(const Call& call) const {
  const std::lock_guard lock(mutex_);
  const auto found = timed_.find({call.kind, call.device});
  if (found == timed_.end()) return std::nullopt;
  std::optional<std::pair<double, Microseconds>> below, above;  // bytes and time
  for (const auto& [_, timed] : found->second) {
    if (!timed.times->are_over()) continue;
    const std::pair<double, Microseconds> known{timed.num_bytes, timed.times->active()};
    if (timed.num_bytes <= call.num_bytes) below = known;
    if (timed.num_bytes >= call.num_bytes && !above) above = known;
  }
  if (!below) return above ? std::optional(above->second) : std::nullopt;
  const auto num_bytes = static_cast<double>(call.num_bytes);
  if (!above) return below->first == 0 ? below->second : below->second * (num_bytes / below->first);
  if (above->first == below->first) return above->second;
  const double share = (num_bytes - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

}  // namespace axon::c10d_backend
