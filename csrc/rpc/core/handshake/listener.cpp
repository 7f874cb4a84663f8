#include "rpc/core/handshake/listener.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/event_descriptor.hpp"
#include "base/log.hpp"
#include "base/resources.hpp"
#include "base/tcp_socket.hpp"
#include "rpc/core/handshake/listener_address.hpp"

namespace axon::rpc {

static constexpr std::chrono::milliseconds kExhaustedPause{100};
static constexpr std::chrono::milliseconds kForever{1'000'000};
// With fewer descriptors left, peers are served one at a time. Many unauthenticated connections must not use up the
// descriptors that authenticated peers need.
static constexpr size_t kSpareDescriptors = 4;

static uint64_t Listener::Counts::* counter_of(HandshakeOutcome outcome) noexcept {
  switch (outcome) {
    case HandshakeOutcome::kEstablished:
      return &Listener::Counts::num_met;
    case HandshakeOutcome::kMalformed:
      return &Listener::Counts::num_malformed;
    case HandshakeOutcome::kOtherVersion:
      return &Listener::Counts::num_other_version;
    case HandshakeOutcome::kWrongSecret:
      return &Listener::Counts::num_wrong_secret;
    case HandshakeOutcome::kRefused:
      break;
  }
  return &Listener::Counts::num_refused;
}

Result<std::unique_ptr<Listener>> Listener::open(const SocketAddress& socket_address, const Secret& secret,
                                                 uint64_t incarnation, const Limits& limits, OnAccept on_accept) {
  Result<FileDescriptor> socket = listen_at(socket_address, SOMAXCONN);
  if (!socket.ok()) return std::move(socket.status());
  FileDescriptor wake_event = open_event();
  if (!wake_event.valid()) return out_of("eventfd", errno);
  const SocketAddress place{.host = socket_address.host, .port = port_of(socket.value())};
  try {
    return std::unique_ptr<Listener>(new Listener(std::move(socket).value(), std::move(wake_event),
                                                  {.incarnation = incarnation, .place = place.text()}, secret, limits,
                                                  std::move(on_accept)));
  } catch (const std::system_error& failure) {
    return Status(ErrorCode::kResourceExhausted, describe_thread_failure("axon-listener", failure));
  }
}

Listener::Listener(FileDescriptor socket, FileDescriptor wake_event, ListenerIdentity identity, const Secret& secret,
                   const Limits& limits, OnAccept on_accept)
    : socket_(std::move(socket)),
      wake_event_(std::move(wake_event)),
      spare_(fcntl(wake_event_.get(), F_DUPFD_CLOEXEC, 0)),
      secret_(secret),
      limits_(limits),
      on_accept_(std::move(on_accept)),
      port_(port_of(socket_)),
      identity_(std::move(identity)),
      address_key_(address_key_of(secret, identity_.place)),
      pid_(getpid()),
      thread_([this] { run(); }) {}

void Listener::close() noexcept {
  if (!thread_.joinable()) return;
  if (getpid() != pid_) {  // a forked child has the memory, but not the thread
    thread_.detach();
  } else {
    closing_.store(true);
    set_event(wake_event_);
    thread_.join();
  }
  pending_.clear();
  socket_ = FileDescriptor();
}

Listener::Counts Listener::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Listener::count(uint64_t Counts::* what) {
  const std::lock_guard lock(mutex_);
  ++(counts_.*what);
}

bool Listener::is_full() const noexcept {
  if (pending_.empty()) return false;
  return pending_.size() >= limits_.num_pending || num_free_descriptors().value_or(SIZE_MAX) < kSpareDescriptors;
}

std::chrono::milliseconds Listener::handshake_timeout() const noexcept {
  return is_full() ? std::min(limits_.handshake_timeout, limits_.handshake_timeout_when_full)
                   : limits_.handshake_timeout;
}

void Listener::run() {
  pthread_setname_np(pthread_self(), "axon-listener");
  for (;;) {
    wait();
    if (closing_.load()) return;
    auto pending = pending_.begin();
    for (size_t i = 2; i < events_.size(); ++i) {
      const bool stays = events_[i].revents == 0 || serve(*pending);
      pending = stays ? std::next(pending) : pending_.erase(pending);
    }
    drop_late();
    if (events_[1].revents != 0) accept_all();
  }
}

void Listener::wait() {
  const Clock::time_point now = Clock::now();
  Clock::time_point until = pending_.empty() ? now + kForever : pending_.front().connected_at + handshake_timeout();
  const bool accepts = !is_full() && next_accept_ <= now;
  if (next_accept_ > now) until = std::min(until, next_accept_);
  events_.assign({{.fd = wake_event_.get(), .events = POLLIN, .revents = 0},
                  {.fd = accepts ? socket_.get() : -1, .events = POLLIN, .revents = 0}});
  for (const PendingHandshake& pending : pending_) {
    const short event = pending.unsent.empty() ? POLLIN : POLLOUT;
    events_.push_back({.fd = pending.socket.get(), .events = event, .revents = 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  if (poll(events_.data(), events_.size(), static_cast<int>(std::max<int64_t>(left, 0))) >= 0) return;
  for (pollfd& each : events_) each.revents = 0;
}

FileDescriptor Listener::accept_one() noexcept {
  const auto accept = [this] {
    return withheld(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  };
  if (!spare_.valid()) spare_ = FileDescriptor(fcntl(wake_event_.get(), F_DUPFD_CLOEXEC, 0));
  FileDescriptor socket = accept();
  if (socket.valid() || errno != EMFILE || !spare_.valid()) return socket;
  spare_ = FileDescriptor();
  return accept();
}

void Listener::accept_all() {
  while (!is_full()) {
    FileDescriptor socket = accept_one();
    if (!socket.valid()) {
      // Errors other than "none is waiting" and "already gone" mean a shortage of resources, which may pass.
      if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
        if (!std::exchange(has_run_out_, true)) log::warn(out_of("connections cannot be accepted", errno).message());
        count(&Counts::num_exhausted);
        next_accept_ = Clock::now() + kExhaustedPause;
      }
      return;
    }
    has_run_out_ = false;
    send_at_once(socket);
    pending_.push_back({.socket = std::move(socket),
                        .handshake = Handshake::listener({secret_, address_key_}, random_nonce(), identity_),
                        .unsent = {},
                        .connected_at = Clock::now()});
  }
}

void Listener::drop_late() {
  const Clock::time_point now = Clock::now();
  while (!pending_.empty() && pending_.front().connected_at + handshake_timeout() <= now) {
    pending_.pop_front();
    count(&Counts::num_late);
  }
}

bool Listener::serve(PendingHandshake& pending) {
  if (pending.unsent.empty() && !receive_from(pending)) return false;
  if (!send_to(pending)) return false;
  return !pending.handshake.outcome() || !pending.unsent.empty();
}

bool Listener::receive_from(PendingHandshake& pending) {
  std::array<std::byte, 4096> bytes;
  const ssize_t num_read = ::recv(pending.socket.get(), bytes.data(), bytes.size(), 0);
  if (num_read < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (num_read <= 0) {
    if (!pending.handshake.is_proved()) count(&Counts::num_hung_up);  // otherwise it was connected already
    return false;
  }
  pending.handshake.feed(std::span(bytes).first(static_cast<size_t>(num_read)));
  if (pending.handshake.peer() && !pending.handshake.outcome()) accept_peer(pending);
  if (const auto outcome = pending.handshake.outcome()) {
    count(counter_of(*outcome));
    if (*outcome != HandshakeOutcome::kEstablished)
      log::info("refused a connection: " + pending.handshake.reason().message());
  }
  pending.unsent = pending.handshake.take_output();
  return true;
}

bool Listener::send_to(PendingHandshake& pending) {
  if (pending.unsent.empty()) return true;
  const ssize_t num_sent = ::send(pending.socket.get(), pending.unsent.data(), pending.unsent.size(), MSG_NOSIGNAL);
  if (num_sent < 0) return errno == EAGAIN || errno == EINTR;
  pending.unsent.erase(pending.unsent.begin(), pending.unsent.begin() + num_sent);
  return true;
}

// From here on the callback owns the socket; the answer to the peer goes through a duplicate of it.
void Listener::accept_peer(PendingHandshake& pending) {
  FileDescriptor kept = withheld(fcntl(pending.socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!kept.valid()) return pending.handshake.refuse(out_of("the runtime cannot serve another connection", errno));
  watch_for_silence(kept);
  Result<EndpointInfo> own = on_accept_({.peer = *pending.handshake.peer(), .socket = std::move(kept)});
  own.ok() ? pending.handshake.answer(own.value()) : pending.handshake.refuse(std::move(own.status()));
}

}  // namespace axon::rpc
