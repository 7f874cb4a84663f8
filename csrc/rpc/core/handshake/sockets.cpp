#include "rpc/core/handshake/sockets.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/interrupts.hpp"
#include "base/resources.hpp"
#include "base/tcp_socket.hpp"

namespace axon::rpc {

namespace {

// For callers without a deadline; resolvers give up within this time by default.
constexpr std::chrono::seconds kLongestLookup{60};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// A query to the system's resolver.
struct Lookup {
  SocketAddress socket_address;
  std::mutex mutex;  // guards the following members
  std::condition_variable changed;
  bool is_over = false;
  int error = 0;
  Addresses found{nullptr, &freeaddrinfo};

  int ask(int flags);
  void run() {
    const int result = ask(0);
    const std::lock_guard lock(mutex);
    is_over = true;
    error = result;
    changed.notify_all();
  }
};

int Lookup::ask(int flags) {
  const addrinfo hints{.ai_flags = AI_NUMERICSERV | flags,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* addresses = nullptr;
  const int result =
      getaddrinfo(socket_address.host.c_str(), std::to_string(socket_address.port).c_str(), &hints, &addresses);
  if (result == 0) found.reset(addresses);
  return result;
}

// The resolver may query servers that do not answer, and can neither be interrupted nor given a deadline. So a separate
// thread waits for it, and goes on alone if this one gives up.
Result<Addresses> resolve(const SocketAddress& socket_address, sync::Clock::time_point deadline) {
  const auto lookup = std::make_shared<Lookup>();  // shared with that thread
  lookup->socket_address = socket_address;
  if (lookup->ask(AI_NUMERICHOST) == 0) return std::move(lookup->found);
  try {
    std::thread([lookup] { lookup->run(); }).detach();
  } catch (const std::system_error& failure) {
    return Status(ErrorCode::kResourceExhausted, describe_thread_failure("axon-resolver", failure));
  }
  std::unique_lock lock(lookup->mutex);
  while (!lookup->is_over) {
    lookup->changed.wait_until(lock, interrupts::next_look(deadline));
    if (lookup->is_over) break;
    lock.unlock();  // a signal handler may wait for another host
    if (interrupts::are_pending()) return interrupts::interrupted();
    lock.lock();
    if (sync::Clock::now() < deadline) continue;
    return Status(ErrorCode::kTimeout, "host '" + socket_address.host + "' has not been resolved by the deadline");
  }
  if (lookup->error != 0) {
    return Status(ErrorCode::kUnknownHost,
                  "host '" + socket_address.host + "' is not known: " + gai_strerror(lookup->error));
  }
  return std::move(lookup->found);
}

bool is_loopback(const sockaddr& address) noexcept {
  if (address.sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Returns zero, or an error code as in errno.
int connect_one(const FileDescriptor& socket, const addrinfo& address, sync::Clock::time_point deadline) noexcept {
  if (!socket.valid()) return errno;
  send_at_once(socket);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket, POLLOUT, deadline)) return interrupts::are_pending() ? EINTR : ETIMEDOUT;
  return error_of(socket);
}

}  // namespace

std::string SocketAddress::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<bool> is_loopback(const std::string& host) {
  Result<Addresses> addresses = resolve({.host = host, .port = 0}, sync::Clock::now() + kLongestLookup);
  if (!addresses.ok()) return std::move(addresses.status());
  for (const addrinfo* each = addresses.value().get(); each != nullptr; each = each->ai_next) {
    if (!is_loopback(*each->ai_addr)) return false;
  }
  return true;
}

Result<FileDescriptor> listen_at(const SocketAddress& socket_address, int backlog) {
  Result<Addresses> addresses = resolve(socket_address, sync::Clock::now() + kLongestLookup);
  if (!addresses.ok()) return std::move(addresses.status());
  const addrinfo& address = *addresses.value();
  FileDescriptor socket = open_tcp_socket(address.ai_family);
  if (!socket.valid()) return out_of("cannot listen at " + socket_address.text(), errno);
  set_option(socket, SOL_SOCKET, SO_REUSEADDR);  // for a port where connections of an earlier listener linger
  if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 || ::listen(socket.get(), backlog) != 0) {
    return Status(ErrorCode::kInvalidArgument, "cannot listen at " + socket_address.text() + ": " + last_error());
  }
  return socket;
}

Result<FileDescriptor> connect_to(const SocketAddress& socket_address, sync::Clock::time_point deadline) {
  Result<Addresses> addresses = resolve(socket_address, deadline);
  if (!addresses.ok()) return std::move(addresses.status());
  int error = 0;
  for (const addrinfo* each = addresses.value().get(); each != nullptr; each = each->ai_next) {
    FileDescriptor socket = open_tcp_socket(each->ai_family);
    error = connect_one(socket, *each, deadline);
    if (error == 0) return socket;
    if (error == EINTR) return interrupts::interrupted();
  }
  if (error == ETIMEDOUT)
    return Status(ErrorCode::kTimeout, socket_address.text() + " has not answered by the deadline");
  return out_of(socket_address.text() + " cannot be reached", error);
}

bool wait_for(const FileDescriptor& socket, short events, sync::Clock::time_point deadline) noexcept {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - sync::Clock::now());
    if (left.count() <= 0) return false;
    pollfd each{.fd = socket.get(), .events = events, .revents = 0};
    if (poll(&each, 1, static_cast<int>(std::min(left, interrupts::kInterval).count())) > 0) return true;
    if (interrupts::are_pending()) return false;
  }
}

}  // namespace axon::rpc
