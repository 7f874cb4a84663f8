#include "transport/rails/rail_thread.hpp"

#include <pthread.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "base/blocked_signals.hpp"
#include "base/event_descriptor.hpp"
#include "base/resources.hpp"

namespace axon::transport {

static constexpr size_t kMostEvents = 32;

Status RailThread::start(const char* name) {
  born_after_ = num_forks();
  is_woken_.store(false);  // a thread that did not run could not be woken
  wake_event_ = open_event();
  if (!wake_event_.valid()) return out_of("eventfd", errno);
  epoll_set_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_set_.valid()) return out_of("epoll_create1", errno);
  AXON_TRY(watch(wake_event_, EPOLLIN, this));
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this, name] { run(name); });
  } catch (const std::system_error& failure) {
    return {ErrorCode::kResourceExhausted, describe_thread_failure(name, failure)};
  }
  return Status();
}

void RailThread::stop() noexcept {
  if (!thread_.joinable()) return;
  if (num_forks() != born_after_) return thread_.detach();
  stopping_.store(true);
  wake();
  thread_.join();
}

void RailThread::wake() noexcept {
  if (is_woken_.exchange(true)) return;
  set_event(wake_event_);
}

Status RailThread::watch(const FileDescriptor& descriptor, uint32_t events, void* watched) noexcept {
  epoll_event event{.events = events, .data = {.ptr = watched}};
  return epoll_ctl(epoll_set_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) == 0 ? Status()
                                                                                   : out_of("epoll_ctl", errno);
}

void RailThread::change(const FileDescriptor& descriptor, uint32_t events, void* watched) noexcept {
  epoll_event event{.events = events, .data = {.ptr = watched}};
  epoll_ctl(epoll_set_.get(), EPOLL_CTL_MOD, descriptor.get(), &event);
}

void RailThread::unwatch(const FileDescriptor& descriptor) noexcept {
  epoll_ctl(epoll_set_.get(), EPOLL_CTL_DEL, descriptor.get(), nullptr);
}

void RailThread::run(const char* name) noexcept {
  pthread_setname_np(pthread_self(), name);
  on_wake();  // for what was added before
  while (!stopping_.load()) run_round(on_round());
}

// Being woken comes last, because it may end what other events of the round are for.
void RailThread::run_round(int timeout_ms) noexcept {
  std::array<epoll_event, kMostEvents> events;
  const int num_events = epoll_wait(epoll_set_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  bool is_to_wake = false;
  for (int i = 0; i < num_events; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr == this) {
      is_to_wake = true;
    } else {
      on_event(event.data.ptr, event.events);
    }
  }
  if (!is_to_wake) return;
  clear_event(wake_event_);
  is_woken_.store(false);
  on_wake();
}

}  // namespace axon::transport
