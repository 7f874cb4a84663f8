#include "c10d/hook_in_progress.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "python/signals.hpp"

namespace axon::c10d_backend {

static constexpr std::chrono::seconds kLongestHook{2};
static constexpr std::chrono::milliseconds kHookLookInterval{1};

// A thread increments this before it checks whether Python is still running; Python's exit flag is set before this is
// read. A forked child has no such thread.
static std::atomic<int> num_in_hooks{0};

[[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { num_in_hooks.store(0); });

HookInProgress::HookInProgress() noexcept {
  num_in_hooks.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

HookInProgress::~HookInProgress() {
  num_in_hooks.fetch_sub(1);
}

// Hooks are not called for failures that the exit of this process causes.
bool HookInProgress::may_call() const noexcept {
  return python::has_python() && !python::is_ending();
}

void HookInProgress::await_all() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto deadline = std::chrono::steady_clock::now() + kLongestHook;
  while (num_in_hooks.load() > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(kHookLookInterval);
}

}  // namespace axon::c10d_backend
