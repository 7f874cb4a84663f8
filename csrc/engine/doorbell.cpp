#include "engine/doorbell.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/event_descriptor.hpp"
#include "base/log.hpp"
#include "base/resources.hpp"

namespace axon::engine {

// The data of an epoll event: a process's descriptor and its peer.
static uint64_t mark_of(int process, transport::PeerId peer) noexcept {
  return (static_cast<uint64_t>(peer) << 32) | static_cast<uint32_t>(process);
}

static FileDescriptor make_event() {
  FileDescriptor event = open_event();
  if (!event.valid()) throw std::runtime_error("torch_axon: " + out_of("eventfd", errno).message());
  return event;
}

static timespec timespec_of(std::chrono::microseconds time) noexcept {
  return {.tv_sec = time.count() / 1'000'000, .tv_nsec = time.count() % 1'000'000 * 1000};
}

Doorbell::Doorbell(int transport_fd)
    : transport_fd_(transport_fd), background_event_(make_event()), waiter_event_(make_event()) {}

// Held while a descriptor is in use; close() waits for it. Sequentially consistent, so one of the two sees the other.
class Doorbell::Pass {
 public:
  explicit Pass(Doorbell& doorbell) noexcept : doorbell_(doorbell) { doorbell_.num_inside_.fetch_add(1); }
  ~Pass() { doorbell_.num_inside_.fetch_sub(1); }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  bool is_valid() const noexcept { return !doorbell_.is_closed_.load(); }

 private:
  Doorbell& doorbell_;
};

void Doorbell::ring() noexcept {
  if (const Pass pass(*this); pass.is_valid()) set_event(background_event_);
}

void Doorbell::ring_waiter() noexcept {
  if (const Pass pass(*this); pass.is_valid()) set_event(waiter_event_);
}

void Doorbell::close() noexcept {
  ring_waiter();
  is_closed_.store(true);
  while (num_inside_.load() != 0) std::this_thread::yield();  // for a blocked waiter, which has been rung
  const std::lock_guard lock(mutex_);
  watched_.clear();
  polled_.clear();
  processes_fd_.store(-1, std::memory_order_relaxed);  // the thread that reads it has ended
  for (FileDescriptor* each : {&background_event_, &waiter_event_, &processes_}) *each = FileDescriptor();
}

Status Doorbell::watch(int32_t pid, transport::PeerId peer) {
  // glibc has no wrapper before 2.36.
  FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return watch_without_descriptor(pid, peer, errno);
  if (Status added = add_to_set(process, mark_of(process.get(), peer)); !added.ok()) {
    return Status(added.code(), "watching process " + std::to_string(pid) + ": " + added.message());
  }
  const std::lock_guard lock(mutex_);
  watched_.push_back(std::move(process));
  return Status();
}

// The background thread may sleep already, without the set if it is new. It sleeps with the set once it has been rung.
Status Doorbell::add_to_set(const FileDescriptor& process, uint64_t mark) {
  if (!processes_.valid()) {
    FileDescriptor made(epoll_create1(EPOLL_CLOEXEC));
    if (!made.valid()) return out_of("epoll_create1", errno);
    processes_ = std::move(made);
  }
  epoll_event event{.events = EPOLLIN, .data = {.u64 = mark}};
  if (epoll_ctl(processes_.get(), EPOLL_CTL_ADD, process.get(), &event) != 0) return out_of("epoll_ctl", errno);
  if (processes_fd_.load(std::memory_order_relaxed) < 0) {
    processes_fd_.store(processes_.get(), std::memory_order_release);
    ring();
  }
  return Status();
}

Status Doorbell::watch_without_descriptor(int32_t pid, transport::PeerId peer, int error) {
  const std::string process = "process " + std::to_string(pid);
  if (error == ESRCH) return {ErrorCode::kPeerLost, process + " has ended"};
  Status refusal = out_of("watching " + process + ": pidfd_open", error);
  if (refusal.code() == ErrorCode::kResourceExhausted) return refusal;
  Result<PolledProcess> found = PolledProcess::find(pid, peer);
  if (!found.ok() && found.status().code() == ErrorCode::kPeerLost) return std::move(found.status());
  if (!found.ok()) {
    log::warn("the end of " + process + " will show as a timeout: " + refusal.message() + "; " +
              found.status().message());
    return Status();
  }
  const std::lock_guard lock(mutex_);
  polled_.push_back(found.value());
  num_polled_.store(polled_.size(), std::memory_order_relaxed);
  return Status();
}

// Appends the peers of ended processes to `ended_`, which has `num_ended` entries, and returns the new count.
size_t Doorbell::look_at_polled(size_t num_ended) noexcept {
  const auto now = sync::Clock::now();
  if (now < next_look_) return num_ended;
  next_look_ = now + kBetweenLooks;
  const std::lock_guard lock(mutex_);
  std::erase_if(polled_, [&](const PolledProcess& process) {
    if (num_ended == ended_.size() || !process.has_ended()) return false;
    ended_[num_ended++] = process.peer();
    return true;
  });
  num_polled_.store(polled_.size(), std::memory_order_relaxed);
  return num_ended;
}

// Removes the descriptor explicitly: a forked child may hold a copy, and closing ours alone would leave it in the set.
void Doorbell::forget(int process) noexcept {
  epoll_ctl(processes_.get(), EPOLL_CTL_DEL, process, nullptr);
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](const FileDescriptor& watched) { return watched.get() == process; });
}

// Appends the peers of watched processes that have ended to `ended_`, which is empty, and returns their number.
size_t Doorbell::take_ended() noexcept {
  std::array<epoll_event, kMostEvents> events;
  const int num_events = epoll_wait(processes_.get(), events.data(), static_cast<int>(events.size()), 0);
  size_t num_ended = 0;
  for (int i = 0; i < num_events; ++i) {
    const uint64_t mark = events[i].data.u64;
    ended_[num_ended++] = static_cast<transport::PeerId>(mark >> 32);
    forget(static_cast<int>(mark & UINT32_MAX));
  }
  return num_ended;
}

// ppoll ignores descriptors below 0.
std::span<const transport::PeerId> Doorbell::sleep(Sleep depth, std::chrono::microseconds at_most) noexcept {
  const bool polls = num_polled_.load(std::memory_order_relaxed) != 0;
  const timespec timeout = timespec_of(polls ? std::min<std::chrono::microseconds>(at_most, kBetweenLooks) : at_most);
  const int transport_fd = depth == Sleep::kDeep ? transport_fd_ : -1;
  std::array<pollfd, 3> set{{{.fd = background_event_.get(), .events = POLLIN, .revents = 0},
                             {.fd = processes_fd_.load(std::memory_order_acquire), .events = POLLIN, .revents = 0},
                             {.fd = transport_fd, .events = POLLIN, .revents = 0}}};
  size_t num_ended = 0;
  if (ppoll(set.data(), set.size(), &timeout, nullptr) > 0) {
    if (set[0].revents != 0) clear_event(background_event_);
    if (set[1].revents != 0) num_ended = take_ended();
  }
  if (polls) num_ended = look_at_polled(num_ended);
  return {ended_.data(), num_ended};
}

bool Doorbell::block_on_events(std::chrono::microseconds at_most) noexcept {
  const Pass pass(*this);
  if (!pass.is_valid()) return false;
  const timespec timeout = timespec_of(at_most);
  std::array<pollfd, 2> set{{{.fd = transport_fd_, .events = POLLIN, .revents = 0},
                             {.fd = waiter_event_.get(), .events = POLLIN, .revents = 0}}};
  if (ppoll(set.data(), set.size(), &timeout, nullptr) <= 0) return false;
  if (set[1].revents != 0) clear_event(waiter_event_);
  return set[0].revents != 0;
}

}  // namespace axon::engine
