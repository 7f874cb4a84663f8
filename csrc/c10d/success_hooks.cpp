#include "c10d/success_hooks.hpp"

#include <exception>
#include <string>
#include <utility>

#include "base/log.hpp"

namespace axon::c10d_backend {

void SuccessHooks::replace(const std::function<void(Hooks&)>& change) {
  std::shared_ptr<const Hooks> former;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  auto changed = std::make_shared<Hooks>(*hooks_);
  change(*changed);
  are_any_.store(!changed->empty(), std::memory_order_relaxed);
  former = std::exchange(hooks_, std::move(changed));
}

void SuccessHooks::add(int64_t id, Hook hook) {
  replace([&](Hooks& hooks) { hooks[id] = std::move(hook); });
}

void SuccessHooks::remove(int64_t id) {
  replace([&](Hooks& hooks) { hooks.erase(id); });
}

void SuccessHooks::report(uint64_t key, std::optional<float> duration) const noexcept {
  std::shared_ptr<const Hooks> hooks;
  {
    const std::lock_guard lock(mutex_);
    hooks = hooks_;
  }
  for (const auto& [id, hook] : *hooks) {
    try {
      hook(key, duration);
    } catch (const std::exception& error) {
      log::warn(std::string("a completion hook has thrown: ") + error.what());
    }
  }
}

// The upper half keeps our keys apart from those of other backends of a group, which count, too, or use addresses.
uint64_t SuccessHooks::next_key() noexcept {
  static constexpr uint64_t kAxon = uint64_t{0x4158'4f4e} << 32;
  static std::atomic<uint64_t> num_made{0};  // relaxed: only unique
  return kAxon + num_made.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace axon::c10d_backend
