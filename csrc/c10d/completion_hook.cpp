#include "c10d/completion_hook.hpp"

#include <pthread.h>

#include <utility>

#include "base/log.hpp"
#include "c10d/signals.hpp"

namespace axon {

CompletionHook::CompletionHook(const Hook& hook) : hook_(hook), thread_([this] { run(); }) {}

CompletionHook::~CompletionHook() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CompletionHook::note(Call call) {
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  changed_.notify_all();
}

void CompletionHook::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return calls_.empty(); });
}

void CompletionHook::run() {
  pthread_setname_np(pthread_self(), "axon-hook");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !calls_.empty(); });
    if (calls_.empty()) return;
    const Call& next = calls_.front();
    lock.unlock();
    call(next);
    lock.lock();
    calls_.pop_front();
    changed_.notify_all();
  }
}

void CompletionHook::call(const Call& call) noexcept {
  try {
    const auto ended = call.times->await();
    if (!has_python()) return;
    hook_(
        std::make_shared<c10d::WorkInfo>(call.type, call.sequence, call.times->called(), ended, call.times->active()));
  } catch (const std::exception& error) {
    log::warn(std::string("a completion hook has thrown: ") + error.what());
  }
}

}  // namespace axon
