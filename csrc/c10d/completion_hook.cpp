#include "c10d/completion_hook.hpp"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "base/condition.hpp"
#include "base/interrupts.hpp"
#include "base/log.hpp"
#include "base/resources.hpp"
#include "c10d/errors.hpp"
#include "c10d/hook_in_progress.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

struct CompletionHook::State {
  explicit State(Hook given) : hook(std::move(given)) {}
  // Destroying the hook takes the GIL.
  ~State() {
    if (python::has_python()) return;
    [[maybe_unused]] auto* const leaked = new Hook(std::move(hook));
  }

  Hook hook;
  std::mutex mutex;  // guards all members below
  std::condition_variable changed;
  std::deque<Call> calls;  // the thread owns the first one
  uint64_t num_noted = 0;
  uint64_t num_told = 0;
  bool ends = false;
};

static void tell(const CompletionHook::Hook& hook, const CompletionHook::Call& call) {
  try {
    call.times->make_device_current();
    const auto ended = call.times->await();
    const HookInProgress in_progress;
    if (in_progress.may_call()) hook(call, ended);
  } catch (const std::exception& error) {
    log::warn(std::string("a completion hook has thrown: ") + error.what());
  }
}

// Throws if the system refuses to start a thread.
static std::thread start_thread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& failure) {
    throw std::runtime_error("torch_axon: " + describe_thread_failure("axon-hook", failure));
  }
}

CompletionHook::CompletionHook(Hook hook) : state_(std::make_shared<State>(std::move(hook))) {
  std::thread thread = start_thread([state = state_] {
    pthread_setname_np(pthread_self(), "axon-hook");
    std::unique_lock lock(state->mutex);
    while (true) {
      await(state->changed, lock, [&] { return state->ends || !state->calls.empty(); });
      if (state->calls.empty()) return;
      const Call next = state->calls.front();
      state->calls.pop_front();
      lock.unlock();
      tell(state->hook, next);
      lock.lock();
      ++state->num_told;
      state->changed.notify_all();
    }
  });
  thread_id_ = thread.get_id();
  thread.detach();
}

CompletionHook::~CompletionHook() {
  if (!has_thread()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  if (is_own_thread() || !python::has_python()) return;
  const python::GilReleasedIfHeld no_gil;  // hooks take it
  await_told();
  python::raise_soon_what_signals_raised();
}

void CompletionHook::note(Call call) {
  if (!has_thread()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->calls.push_back(std::move(call));
    ++state_->num_noted;
  }
  state_->changed.notify_all();
}

void CompletionHook::drain() {
  if (!has_thread()) return;
  if (is_own_thread()) {
    throw_value_error(
        "a completion hook waits for its own group's calls, as destroy_process_group() does; allowed: "
        "other groups");
  }
  const python::GilReleasedIfHeld no_gil;  // hooks take it
  await_told();
  python::raise_what_signals_raised();
}

// A hook may run for any time, so Ctrl-C ends the wait for it.
void CompletionHook::await_told() noexcept {
  std::unique_lock lock(state_->mutex);
  const auto are_told = [&, wanted = state_->num_noted] { return state_->num_told >= wanted; };
  while (!state_->changed.wait_for(lock, interrupts::kInterval, are_told)) {
    lock.unlock();
    if (interrupts::are_pending()) return;
    lock.lock();
  }
}

}  // namespace axon::c10d_backend
