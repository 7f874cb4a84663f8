#include "gpu_comm/workspace/wait_ender.hpp"

#include <mutex>
#include <vector>

#include "ipc/registrations/cache_thread.hpp"

namespace axon::gpu_comm {

// All wait enders of the process. They cannot use the IPC cache thread, since it calls CUDA.
struct WaitEnder::Registry {
  ipc::CacheThread thread{"axon-waits"};
  std::mutex mutex;
  std::vector<const WaitEnder*> all;
  std::mutex starting;
  bool has_started = false;  // guarded by starting

  // Never destroyed: streams may wait until the process exits.
  static Registry& instance() {
    static auto* const registry = new Registry;
    return *registry;
  }

  Status start() {
    const std::lock_guard lock(starting);
    if (!has_started) AXON_TRY(thread.add_task([this] { return store(); }));
    has_started = true;
    return Status();
  }

  ipc::Liveliness store() {
    const std::lock_guard lock(mutex);
    ipc::Liveliness liveliness = ipc::Liveliness::kIdle;
    for (const WaitEnder* each : all) {
      if (!each->has_begun_.load(std::memory_order_relaxed)) continue;
      for (uint32_t& flag : each->flags_) std::atomic_ref(flag).store(1, std::memory_order_relaxed);
      liveliness = ipc::Liveliness::kHasty;
    }
    return liveliness;
  }
};

Status WaitEnder::prepare() {
  return Registry::instance().start();
}

WaitEnder::WaitEnder(std::span<uint32_t> flags) : flags_(flags) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.all.push_back(this);
}

WaitEnder::~WaitEnder() {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  std::erase(registry.all, this);
}

void WaitEnder::begin() noexcept {
  if (!has_begun_.exchange(true, std::memory_order_relaxed)) Registry::instance().thread.wake();
}

}  // namespace axon::gpu_comm
