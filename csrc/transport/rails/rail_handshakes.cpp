#include "transport/rails/rail_handshakes.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "base/resources.hpp"
#include "base/tcp_socket.hpp"

namespace axon::transport {

static constexpr int kBacklog = 1024;
static constexpr size_t kLongestFrame = 56;
// For how long the other host may leave a frame of a handshake unacknowledged, whether its process answers or not.
static constexpr int kMostSilenceMs = 10'000;
// How long connections wait in the kernel's queue after the system had no room for one.
static constexpr std::chrono::seconds kAcceptInterval{1};

// The same call may succeed later.
static bool is_shortage(int error) noexcept {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

// Returns a socket for IPv6 and IPv4, or for IPv4 alone on hosts without IPv6.
static Result<FileDescriptor> listen_anywhere() {
  for (const IpAddress& address : {kAnyIpv6, kAnyIpv4}) {
    const SystemAddress any = system_address(address, 0);
    FileDescriptor socket = open_tcp_socket(any.storage.ss_family);
    if (!socket.valid()) continue;
    if (address == kAnyIpv6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(socket.get(), any.get(), any.num_bytes) == 0 && ::listen(socket.get(), kBacklog) == 0) return socket;
  }
  return out_of("a port for rails cannot be opened", errno);
}

Result<std::unique_ptr<RailHandshakes>> RailHandshakes::open(RailAddress own) {
  Result<FileDescriptor> listener = listen_anywhere();
  if (!listener.ok()) return std::move(listener.status());
  own.port = port_of(listener.value());
  return std::unique_ptr<RailHandshakes>(new RailHandshakes(std::move(own), std::move(listener).value()));
}

Status RailHandshakes::start() {
  if (!started_) started_ = start_thread();
  return started_->clone();
}

Status RailHandshakes::start_thread() {
  AXON_TRY(RailThread::start("axon-rails"));
  return watch(listener_, EPOLLIN, const_cast<FileDescriptor*>(&listener_));
}

// In a forked child, a thread that it lacks may hold the lock for good.
void RailHandshakes::serve(RailUse use, Handler* handler) noexcept {
  if (num_forks() != opened_after_) return;
  const std::lock_guard lock(handlers_mutex_);
  handlers_[static_cast<size_t>(use)] = handler;
}

bool RailHandshakes::is_served(RailUse use) const noexcept {
  const std::lock_guard lock(handlers_mutex_);
  return handlers_[static_cast<size_t>(use)] != nullptr;
}

void RailHandshakes::connect(RailRequest request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
  }
  wake();
}

void RailHandshakes::cancel(RailUse use, PeerId peer, Which which) {
  const Cancellation cancellation{.use = use, .peer = peer, .which = which};
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(requests_, [&](const RailRequest& request) { return cancellation.is_of(request); });
    cancellations_.push_back(cancellation);
  }
  wake();
}

// Requests that are left follow the cancellations.
void RailHandshakes::on_wake() noexcept {
  std::vector<RailRequest> requests;
  std::vector<Cancellation> cancellations;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
    cancellations.swap(cancellations_);
  }
  for (const Cancellation& cancellation : cancellations) apply(cancellation);
  std::ranges::move(requests, std::back_inserter(delayed_));
}

void RailHandshakes::apply(const Cancellation& cancellation) noexcept {
  std::erase_if(delayed_, [&](const RailRequest& request) { return cancellation.is_of(request); });
  std::erase_if(pending_, [&](const Pending& pending) {
    if (!pending.request || !cancellation.is_of(*pending.request)) return false;
    if (cancellation.which == Which::kUnopened && pending.handshake.has_opened()) return false;
    unwatch(pending.socket);
    return true;
  });
}

void RailHandshakes::on_event(void* watched, uint32_t /*events*/) noexcept {
  if (watched == &listener_) return accept_all();
  auto& pending = *static_cast<Pending*>(watched);
  if (!advance(pending)) return;
  if (pending.handshake.state() == RailHandshake::State::kEstablished) hand_over(pending);
}

// ---- Deadlines and room

size_t RailHandshakes::num_strangers() const noexcept {
  return static_cast<size_t>(std::ranges::count_if(pending_, [](const Pending& each) { return !each.request; }));
}

// A connector of a rail for messages has no deadline once it has sent its proof. The listener may have accepted the
// rail by then, and would take a connection that is closed for the end of this process.
RailHandshakes::Clock::time_point RailHandshakes::deadline_of(const Pending& pending) const noexcept {
  if (!pending.request) return pending.began + (accepts_ ? kTimeout : kTimeoutWhenFull);
  const bool is_decided = pending.handshake.has_opened() && use_of(pending.request->rail) == RailUse::kMessages;
  if (is_decided) return Clock::time_point::max();
  // An address that does not answer leaves time for the others.
  const auto num_left = static_cast<int64_t>(pending.request->address->addresses.size() - pending.num_tried + 1);
  const Clock::duration share = (pending.request->deadline - pending.began) / num_left;
  return pending.began + std::min<Clock::duration>(kTimeout, share);
}

int RailHandshakes::on_round() noexcept {
  const Clock::time_point now = Clock::now();
  for (auto each = pending_.begin(); each != pending_.end();) {
    Pending& pending = *each++;
    if (deadline_of(pending) <= now) fail(pending, {ErrorCode::kTimeout, "no answer within the time of a handshake"});
  }
  begin_due(now);
  look_for_room(now);
  if (pending_.empty() && delayed_.empty() && accepts_from_ <= now) return -1;
  Clock::time_point next = accepts_from_ <= now ? Clock::time_point::max() : accepts_from_;
  for (const Pending& pending : pending_) next = std::min(next, deadline_of(pending));
  for (const RailRequest& request : delayed_) next = std::min(next, request.not_before);
  if (next == Clock::time_point::max()) return -1;
  return static_cast<int>(std::max<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(next - now).count(), 0));
}

void RailHandshakes::begin_due(Clock::time_point now) {
  std::vector<RailRequest> due;
  std::erase_if(delayed_, [&](RailRequest& request) {
    if (request.not_before > now) return false;
    due.push_back(std::move(request));
    return true;
  });
  for (RailRequest& request : due) begin(std::move(request));
}

// While there is no room, connections wait in the kernel's queue.
void RailHandshakes::look_for_room(Clock::time_point now) noexcept {
  const bool has_room = num_strangers() < kMostStrangers && accepts_from_ <= now;
  if (std::exchange(accepts_, has_room) != has_room)
    change(listener_, has_room ? uint32_t{EPOLLIN} : 0, const_cast<FileDescriptor*>(&listener_));
}

// Without a rail for messages, two processes cannot communicate, so it may take the last descriptor.
bool RailHandshakes::has_descriptors(RailUse use) const noexcept {
  return use == RailUse::kMessages || num_free_descriptors().value_or(SIZE_MAX) > kDescriptorsLeftAlone;
}

// ---- Accepting

bool RailHandshakes::is_own(const FileDescriptor& socket) const noexcept {
  SystemAddress local;
  local.num_bytes = sizeof local.storage;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local.storage), &local.num_bytes);
  return std::ranges::find(own_.addresses, ip_address(*local.get())) != own_.addresses.end();
}

// The listener is bound to all devices; a connection through one that rails do not use is closed.
void RailHandshakes::accept_all() noexcept {
  // Until its first frame, any connection may be for messages, if this port serves them.
  const RailUse accepted_use = is_served(RailUse::kMessages) ? RailUse::kMessages : RailUse::kStripes;
  while (num_strangers() < kMostStrangers) {
    FileDescriptor socket = withheld(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (is_shortage(errno)) accepts_from_ = Clock::now() + kAcceptInterval;
      return;
    }
    if (!is_own(socket) || !has_descriptors(accepted_use)) continue;
    send_at_once(socket);
    watch_for_silence(socket);
    pending_.push_back({.socket = std::move(socket),
                        .handshake = RailHandshake::listener(own_.token, random_nonce()),
                        .began = Clock::now(),
                        .is_connected = true,
                        .request = {},
                        .failure = {}});
    Pending& pending = pending_.back();
    if (!watch(pending.socket, EPOLLIN, &pending).ok()) pending_.pop_back();
  }
}

// ---- Connecting

static size_t first_address_of(const RailRequest& request) noexcept {
  return request.address->takes_turns && use_of(request.rail) == RailUse::kStripes ? request.rail : 0;
}

void RailHandshakes::begin(RailRequest request) {
  const RailAddress& address = *request.address;
  pending_.push_back({.socket = FileDescriptor(),
                      .handshake = RailHandshake::connector(address.token, own_.name,
                                                            static_cast<uint32_t>(request.rail), random_nonce()),
                      .began = Clock::now(),
                      .request = std::move(request),
                      .failure = Status(ErrorCode::kTransport, "none of its addresses was tried in time")});
  Pending& pending = pending_.back();
  if (Status tried = try_next_address(pending); !tried.ok()) {
    report_failure(*pending.request, std::move(tried));
    erase(pending);
  }
}

static Status failure_of(const char* call, int error) {
  Status failure = out_of(call, error);
  return is_shortage(error) ? Status(ErrorCode::kResourceExhausted, failure.message()) : std::move(failure);
}

static Status begin_connection(const FileDescriptor& socket, const SystemAddress& to) {
  if (!socket.valid()) return failure_of("socket", errno);
  send_at_once(socket);
  watch_for_silence(socket);
  if (::connect(socket.get(), to.get(), to.num_bytes) == 0 || errno == EINPROGRESS) return Status();
  return is_shortage(errno) ? failure_of("connect", errno) : Status(ErrorCode::kTransport, last_error());
}

// Returns the failure of the latest address once all have failed, or a shortage at once.
Status RailHandshakes::try_next_address(Pending& pending) {
  const RailAddress& address = *pending.request->address;
  const size_t first = first_address_of(*pending.request);
  while (pending.num_tried < address.addresses.size() && Clock::now() < pending.request->deadline) {
    if (!has_descriptors(use_of(pending.request->rail)))
      return {ErrorCode::kResourceExhausted, "few file descriptors are left in this process"};
    const IpAddress& ip = address.addresses[(first + pending.num_tried++) % address.addresses.size()];
    const SystemAddress system = system_address(ip, address.port);
    pending.socket = open_tcp_socket(system.storage.ss_family);
    pending.handshake = RailHandshake::connector(address.token, own_.name, static_cast<uint32_t>(pending.request->rail),
                                                 random_nonce());
    pending.began = Clock::now();
    pending.is_connected = false;
    Status begun = begin_connection(pending.socket, system);
    if (begun.ok() && !watch(pending.socket, EPOLLOUT, &pending).ok()) begun = failure_of("epoll_ctl", errno);
    if (begun.ok() || begun.code() == ErrorCode::kResourceExhausted) return begun;
    pending.failure = Status(begun.code(), text_of(ip, address.port) + ": " + begun.message());
  }
  return std::move(pending.failure);
}

// ---- Handshakes

bool RailHandshakes::advance(Pending& pending) noexcept {
  if (!pending.is_connected) {
    if (const int error = error_of(pending.socket); error != 0) {
      fail(pending, {ErrorCode::kTransport, std::generic_category().message(error)});
      return false;
    }
    pending.is_connected = true;
    pending.request->was_accepted = true;
    set_option(pending.socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kMostSilenceMs);
    change(pending.socket, EPOLLIN, &pending);
  } else if (!receive(pending)) {
    return false;
  }
  if (pending.handshake.state() == RailHandshake::State::kFailed) {
    fail(pending, {ErrorCode::kUnauthenticated, "not a rail, or without knowledge of the token"});
    return false;
  }
  if (!is_welcome(pending)) {
    unwatch(pending.socket);
    erase(pending);
    return false;
  }
  if (send_output(pending)) return true;
  fail(pending, {ErrorCode::kTransport, last_error()});
  return false;
}

// Returns false for a rail that this process does not serve, or has no descriptor for. It is no stranger's.
bool RailHandshakes::is_welcome(const Pending& pending) const noexcept {
  if (pending.request || !pending.handshake.has_opened()) return true;
  const RailUse use = use_of(pending.handshake.rail());
  return is_served(use) && has_descriptors(use);
}

bool RailHandshakes::receive(Pending& pending) noexcept {
  std::array<std::byte, kLongestFrame> bytes;
  const ssize_t num_read = ::recv(pending.socket.get(), bytes.data(), pending.handshake.num_wanted(), MSG_DONTWAIT);
  if (num_read < 0 && may_go_on(errno)) return true;
  if (num_read <= 0) {
    fail(pending, {ErrorCode::kTransport, num_read == 0 ? "the other end has closed it" : last_error()});
    return false;
  }
  pending.handshake.feed(std::span(bytes).first(static_cast<size_t>(num_read)));
  return true;
}

// The frames of a whole handshake fit into an empty send buffer.
bool RailHandshakes::send_output(Pending& pending) noexcept {
  const std::vector<std::byte> output = pending.handshake.take_output();
  if (output.empty()) return true;
  const ssize_t num_sent = ::send(pending.socket.get(), output.data(), output.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return num_sent == static_cast<ssize_t>(output.size());
}

void RailHandshakes::fail(Pending& pending, Status why) noexcept {
  unwatch(pending.socket);
  pending.socket = FileDescriptor();
  if (!pending.request) {
    // The other end has closed it before. Peers do that if both connect at once, and so do port scanners.
    if (why.code() != ErrorCode::kTransport) report_stranger();
    return erase(pending);
  }
  const RailAddress& address = *pending.request->address;
  const size_t first = first_address_of(*pending.request);
  const IpAddress& ip = address.addresses[(first + pending.num_tried - 1) % address.addresses.size()];
  pending.failure = Status(why.code(), text_of(ip, address.port) + ": " + why.message());
  Status tried = try_next_address(pending);
  if (tried.ok()) return;
  report_failure(*pending.request, std::move(tried));
  erase(pending);
}

void RailHandshakes::hand_over(Pending& pending) noexcept {
  unwatch(pending.socket);
  set_option(pending.socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
  const Digest key = pending.handshake.stripe_key();
  const uint32_t rail = pending.handshake.rail();
  {
    const std::lock_guard lock(handlers_mutex_);
    Handler* const handler = handlers_[static_cast<size_t>(use_of(rail))];
    if (handler != nullptr && pending.request) handler->on_connected(*pending.request, std::move(pending.socket), key);
    if (handler != nullptr && !pending.request)
      handler->on_accepted(pending.handshake.name(), rail, std::move(pending.socket), key);
  }
  erase(pending);
}

void RailHandshakes::report_failure(const RailRequest& request, Status why) noexcept {
  const std::lock_guard lock(handlers_mutex_);
  Handler* const handler = handlers_[static_cast<size_t>(use_of(request.rail))];
  if (handler != nullptr) handler->on_not_connected(request, std::move(why));
}

void RailHandshakes::report_stranger() noexcept {
  const std::lock_guard lock(handlers_mutex_);
  const auto handler = std::ranges::find_if(handlers_, [](const Handler* each) { return each != nullptr; });
  if (handler != handlers_.end()) (*handler)->on_stranger("a connection to the port of rails that was not from a peer");
}

void RailHandshakes::erase(Pending& pending) noexcept {
  pending_.remove_if([&](const Pending& each) { return &each == &pending; });
}

}  // namespace axon::transport
