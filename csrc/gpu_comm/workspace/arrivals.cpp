#include "gpu_comm/workspace/arrivals.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/device_types.hpp"
#include "cuda/memops.hpp"
#include "ipc/arena.hpp"

namespace axon::gpu_comm {

// A page, the smallest amount that a process can map.
static constexpr size_t kFlagBytes = 4096;
static_assert(cuda::kMaxTeamRanks * kMaxTiles * sizeof(uint32_t) <= kFlagBytes);

// Flags of destroyed objects, to be given back when the device is idle. Never destroyed: that would call CUDA while the
// process exits.
struct Arrivals::Retired {
  std::mutex mutex;
  std::map<int, std::vector<Flags>> flags;  // by device

  static Retired& instance() {
    static auto* const retired = new Retired;
    return *retired;
  }

  void add(int device, std::vector<std::optional<Flags>> left) {
    const std::lock_guard lock(mutex);
    for (std::optional<Flags>& each : left) {
      if (each) flags[device].push_back(std::move(*each));
    }
  }

  std::vector<Flags> take(int device) {
    const std::lock_guard lock(mutex);
    return std::exchange(flags[device], {});
  }
};

Result<std::unique_ptr<Arrivals>> Arrivals::create(const Team& team) {
  AXON_TRY(WaitEnder::prepare());
  std::unique_ptr<Arrivals> arrivals(new Arrivals(team));
  AXON_TRY(arrivals->adopt(team.rank, SharedPages::make(kFlagBytes)));
  auto* const own = reinterpret_cast<uint32_t*>(arrivals->flags_[index_of(team.rank)]->page.data());
  arrivals->ender_.emplace(std::span(own, index_of(team.num_ranks, 0)));
  return arrivals;
}

Arrivals::~Arrivals() {
  ender_.reset();
  Retired::instance().add(team_.device, std::move(flags_));
  const Result<ipc::Arena*> arena = ipc::Arena::of(team_.device);
  if (!arena.ok()) return;
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(team_.device);
  (void)arena.value()->launches().run_if_idle([this] { (void)Retired::instance().take(team_.device); });
}

Status Arrivals::map(int peer, FileDescriptor flags) {
  return adopt(peer, SharedPages::map(std::move(flags), kFlagBytes));
}

Status Arrivals::adopt(int rank, Result<SharedPages> page) {
  if (!page.ok()) return std::move(page.status());
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(team_.device);
  Result<cuda::RegisteredMemory> on_device = cuda::RegisteredMemory::open(page.value().data(), kFlagBytes);
  if (!on_device.ok()) return std::move(on_device.status());
  flags_[index_of(rank)].emplace(Flags{std::move(page).value(), std::move(on_device).value()});
  return Status();
}

uint32_t* Arrivals::flag(int receiver, int sender, int tile) const noexcept {
  return reinterpret_cast<uint32_t*>(flags_[index_of(receiver)]->on_device.data()) + index_of(sender, tile);
}

Status Arrivals::tell(int peer, int tile, cuda::StreamView stream) const {
  const cuda::DeviceGuard guard(team_.device);
  return set_flag(stream, flag(peer, team_.rank, tile));
}

Status Arrivals::await(int tile, cuda::StreamView stream) const {
  const cuda::DeviceGuard guard(team_.device);
  std::vector<uint32_t*> flags;
  for (int peer = 0; peer < team_.num_ranks; ++peer) {
    if (peer != team_.rank) flags.push_back(flag(team_.rank, peer, tile));
  }
  return take_flags(stream, flags);
}

}  // namespace axon::gpu_comm
