// The methods of a group that serve transfers between prepared tensors.
#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/capture.hpp"
#include "gpu_comm/device_group.hpp"
#include "gpu_comm/fault_text.hpp"

namespace axon::gpu_comm {

cuda::IpcLocation DeviceGroup::locate(const std::byte* data, size_t num_bytes) {
  if (arena_ == nullptr) return {};
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device_);
  return arena_->registrations().locate(data, num_bytes);
}

Result<std::byte*> DeviceGroup::find(int peer, cuda::IpcLocation location, size_t num_bytes, uint64_t address) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device_);
  const ipc::PeerSlice slice = links_->peer_slice(team_.index_of(peer));
  if (!slice.arena->is_imported()) return reinterpret_cast<std::byte*>(address);
  const std::string which = "rank " + std::to_string(peer) + "'s tensor cannot be mapped: ";
  const auto registration = static_cast<uint32_t>(location.registration);
  const Status mapped = arena_->registrations().await(slice.arena->owner(), registration);
  if (!mapped.ok()) return Status(mapped.code(), which + mapped.message());
  const std::span<std::byte> memory = arena_->registrations().find(slice.arena->owner(), registration);
  if (location.offset + num_bytes <= memory.size()) return memory.data() + location.offset;
  return Status(ErrorCode::kInternal, which + "it has another size");
}

Status DeviceGroup::write_transfer(kernels::TransferEnds ends, int peer, std::chrono::milliseconds timeout,
                                   cuda::StreamView stream) {
  const std::lock_guard lock(mutex_);
  const cuda::DeviceGuard guard(device_);
  ends.peer = team_.index_of(peer);
  const PeerAccess access = peer_access_[static_cast<size_t>(ends.peer)].value_or(PeerAccess::kNone);
  if (access == PeerAccess::kNone) return {ErrorCode::kInternal, "prepare: the two GPUs have no peer access"};
  const cuda::DeviceTeam team = team_for(access, timeout);
  const kernels::TransferWaits waits{
      .fault = &team.state->fault, .control = team.control, .timeout_ns = team.timeout_ns};
  return kernels::write_transfer(waits, ends, stream);
}

static bool has_ended(const std::shared_ptr<WatchedTransfer>& transfer) {
  return transfer->state.load(std::memory_order_relaxed) != WatchedTransfer::State::kOpen &&
         transfer->memory->last_use().has_passed();
}

// Asks CUDA without the lock, which the progress owner may want.
void DeviceGroup::watch(std::shared_ptr<WatchedTransfer> transfer) {
  std::unique_lock lock(fate_mutex_);
  if (!reason_.ok()) abort(*transfer);
  host_transfers_.push_back(std::move(transfer));
  std::vector<std::shared_ptr<WatchedTransfer>> ended = host_transfers_;
  lock.unlock();
  std::erase_if(ended, std::not_fn(has_ended));
  lock.lock();
  std::erase_if(host_transfers_, [&](const auto& each) { return std::ranges::find(ended, each) != ended.end(); });
}

void DeviceGroup::abort(const WatchedTransfer& transfer) noexcept {
  std::atomic_ref(transfer.control->abort).store(1, std::memory_order_relaxed);  // publishes no other data
}

// No failure of the group will end their waits any more.
void DeviceGroup::abort_host_transfers() noexcept {
  const std::lock_guard lock(fate_mutex_);
  for (const std::shared_ptr<WatchedTransfer>& transfer : host_transfers_) abort(*transfer);
}

Status DeviceGroup::fault_of_host_transfers() noexcept {
  const std::lock_guard lock(fate_mutex_);
  for (const std::shared_ptr<WatchedTransfer>& transfer : host_transfers_) {
    if (transfer->state.load(std::memory_order_relaxed) == WatchedTransfer::State::kAbandoned) continue;
    Status found = fault_in(*transfer->control, team_, transfer->peer);
    if (found.ok()) continue;
    if (found.code() != ErrorCode::kAborted || reason_.ok()) return found;
    return reason_.followed_by(found.message());
  }
  return Status();
}

}  // namespace axon::gpu_comm
