#include "stream/workspace/workspaces.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/config.hpp"
#include "cuda/device.hpp"

namespace axon {

Workspaces::Workspaces(Communicator& communicator, int device)
    : communicator_(communicator),
      device_(device),
      most_bytes_(std::stoull(config::text("AXON_WORKSPACE_MB")) << 20),
      most_to_be_had_(most_bytes_) {}

const Workspace* Workspaces::find(size_t num_bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  return made_.empty() || made_.back()->num_bytes() < num_bytes ? nullptr : made_.back().get();
}

Result<const Workspace*> Workspaces::obtain(size_t num_bytes, std::chrono::milliseconds timeout) {
  if (!would_make(num_bytes)) return find(num_bytes);
  Result<std::unique_ptr<Workspace>> made = Workspace::make(
      communicator_,
      {.device = device_, .num_bytes = std::min(std::bit_ceil(num_bytes), most_bytes_), .timeout = timeout});
  if (!made.ok()) return std::move(made.status());
  if (made.value() == nullptr) {
    most_to_be_had_ = num_bytes - 1;
    return static_cast<const Workspace*>(nullptr);
  }
  const std::lock_guard lock(mutex_);
  made_.push_back(std::move(made).value());
  if (has_given_up_) made_.back()->arrivals().give_up();
  return made_.back().get();
}

void Workspaces::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  has_given_up_ = true;
  for (const auto& workspace : made_) workspace->arrivals().give_up();
}

void Workspaces::let_go(std::weak_ptr<void> graphs) {
  const DeviceGuard guard(device_);
  Workspace::let_go(std::exchange(made_, {}), std::move(graphs));
}

}  // namespace axon
