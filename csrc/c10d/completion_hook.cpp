#include "c10d/completion_hook.hpp"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/log.hpp"
#include "c10d/signals.hpp"
#include "python/gil.hpp"

namespace axon {

// Shared with the thread, which stays behind where Python ends.
struct CompletionHook::State {
  const Hook& hook;
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<Call> calls;  // the first one is the thread's
  bool ends = false;
};

static void tell(const CompletionHook::Hook& hook, const CompletionHook::Call& call) {
  try {
    const auto ended = call.times->await();
    if (!has_python()) return;
    const GilHeld gil;  // which hooks in Python take, too, but not so that they could be late
    hook(std::make_shared<c10d::WorkInfo>(call.type, call.sequence, call.times->called(), ended, call.times->active()));
  } catch (const std::exception& error) {
    log::warn(std::string("a completion hook has thrown: ") + error.what());
  } catch (...) {  // nothing is thrown: Python has ended amid the hook, and unwinds its thread
    while (true) pause();
  }
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
