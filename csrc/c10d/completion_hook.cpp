#include "c10d/completion_hook.hpp"

#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/log.hpp"
#include "c10d/signals.hpp"

namespace axon {

// Shared with the thread, which stays behind where Python ends.
struct CompletionHook::State {
  const Hook& hook;
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<Call> calls;  // the first one is the thread's
  bool ends = false;
};

static constexpr std::chrono::seconds kLongestHook{2};
static constexpr std::chrono::milliseconds kLookInterval{1};

// Counted before they ask whether Python goes on, which ends before they are counted.
static std::atomic<int> num_in_hooks{0};

static void tell(const CompletionHook::Hook& hook, const CompletionHook::Call& call) {
  try {
    const auto ended = call.times->await();
    num_in_hooks.fetch_add(1);
    const auto however_it_ends = c10::make_scope_exit([]() noexcept { num_in_hooks.fetch_sub(1); });
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (has_python()) {
      hook(std::make_shared<c10d::WorkInfo>(call.type, call.sequence, call.times->called(), ended,
                                            call.times->active()));
    }
  } catch (const std::exception& error) {
    log::warn(std::string("a completion hook has thrown: ") + error.what());
  }
}

void CompletionHook::await_those_under_way() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto deadline = Times::Clock::now() + kLongestHook;
  while (num_in_hooks.load() > 0 && Times::Clock::now() < deadline) std::this_thread::sleep_for(kLookInterval);
}

CompletionHook::CompletionHook(const Hook& hook) : state_(std::make_shared<State>(hook)) {
  thread_ = std::thread([state = state_] {
    pthread_setname_np(pthread_self(), "axon-hook");
    std::unique_lock lock(state->mutex);
    while (true) {
      state->changed.wait(lock, [&] { return state->ends || !state->calls.empty(); });
      if (state->calls.empty()) return;
      const Call& next = state->calls.front();
      lock.unlock();
      tell(state->hook, next);
      lock.lock();
      state->calls.pop_front();
      state->changed.notify_all();
    }
  });
}

CompletionHook::~CompletionHook() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  has_python() ? thread_.join() : thread_.detach();
}

void CompletionHook::note(Call call) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->calls.push_back(std::move(call));
  }
  state_->changed.notify_all();
}

void CompletionHook::drain() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->calls.empty(); });
}

}  // namespace axon
