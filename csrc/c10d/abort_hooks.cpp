#include "c10d/abort_hooks.hpp"

#include <exception>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "c10d/callbacks.hpp"
#include "c10d/hook_in_progress.hpp"
#include "engine/progress.hpp"

namespace axon::c10d_backend {

void AbortHooks::add(int64_t id, Hook hook) {
  auto added = std::make_shared<const Hook>(std::move(hook));
  const std::lock_guard lock(mutex_);
  hooks_[id].swap(added);  // what it replaces is destroyed without the lock
  are_any_.store(true, std::memory_order_relaxed);
}

void AbortHooks::remove(int64_t id) {
  std::shared_ptr<const Hook> removed;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  if (const auto found = hooks_.find(id); found != hooks_.end()) {
    removed = std::move(found->second);
    hooks_.erase(found);
  }
  are_any_.store(!hooks_.empty(), std::memory_order_relaxed);
}

void AbortHooks::run() noexcept {
  if (!are_any()) return;
  if (!engine::Progress::is_background()) return call_all();
  run_beside_the_engine([self = shared_from_this()] { self->call_all(); });
}

void AbortHooks::call_all() const noexcept {
  const HookInProgress in_progress;
  if (!in_progress.may_call()) return;
  std::map<int64_t, std::shared_ptr<const Hook>> hooks;
  {
    const std::lock_guard lock(mutex_);
    hooks = hooks_;
  }
  for (const auto& [id, hook] : hooks) {
    try {
      (*hook)();
    } catch (const std::exception& error) {
      log::warn(std::string("an abort hook has thrown: ") + error.what());
    }
  }
}

}  // namespace axon::c10d_backend
