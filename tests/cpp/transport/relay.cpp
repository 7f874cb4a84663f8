#include "transport/relay.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/tcp_socket.hpp"

namespace axon::transport {

static sockaddr_in address_of(uint32_t ip, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(ip);
  return address;
}

Relay::Relay(uint16_t to, uint32_t at) : to_(to), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_in any = address_of(at, 0);
  EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  EXPECT_EQ(::listen(listener_.get(), 100), 0);
  port_ = port_of(listener_);
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  stopping_.store(true);
  thread_.join();
}

void Relay::run() {
  while (!stopping_.load()) {
    if (closes_.load()) listener_ = FileDescriptor();
    if (cuts_all_.exchange(false) || closes_.load()) {
      std::ranges::for_each(connections_, reset);
      connections_.clear();
    }
    std::vector<pollfd> events{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      const short wanted = holds_.load() ? 0 : POLLIN;
      events.push_back({.fd = connection.from.get(), .events = wanted, .revents = 0});
      events.push_back({.fd = connection.to.get(), .events = wanted, .revents = 0});
    }
    if (poll(events.data(), events.size(), 1) <= 0) continue;
    size_t index = 1;
    for (auto each = connections_.begin(); each != connections_.end(); index += 2) {
      const bool has_data = events[index].revents != 0 || events[index + 1].revents != 0;
      const bool stays = !has_data || holds_.load() || forward(*each);
      if (!stays) reset(*each);
      each = stays ? std::next(each) : connections_.erase(each);
    }
    if (events[0].revents != 0) accept_one();
  }
}

void Relay::accept_one() {
  FileDescriptor from(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  FileDescriptor to(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = address_of(INADDR_LOOPBACK, to_);
  if (::connect(to.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  send_at_once(from);
  send_at_once(to);
  connections_.push_back({.from = std::move(from), .to = std::move(to)});
}

bool Relay::forward(Connection& connection) {
  return move(connection.from.get(), connection.to.get(), true) &&
         move(connection.to.get(), connection.from.get(), false);
}

// The receiving end reads at all times, so writing may block.
bool Relay::move(int from, int to, bool is_from_connector) {
  static thread_local std::array<char, size_t{1} << 18> bytes;
  const int64_t until_cut = is_from_connector ? num_until_cut_.load() : -1;
  const size_t most = until_cut > 0 ? std::min(bytes.size(), static_cast<size_t>(until_cut)) : bytes.size();
  const ssize_t num_read = ::recv(from, bytes.data(), most, MSG_DONTWAIT);
  if (num_read <= 0) return num_read < 0 && errno == EAGAIN;
  if (until_cut == 0) {
    num_until_cut_.store(-1);
    return false;
  }
  // Counted first, because the receiving end may have all bytes before send() returns.
  if (is_from_connector) num_bytes_.fetch_add(static_cast<uint64_t>(num_read));
  if (::send(to, bytes.data(), static_cast<size_t>(num_read), MSG_NOSIGNAL) != num_read) return false;
  if (until_cut < 0) return true;
  const bool is_last = num_read == until_cut;
  num_until_cut_.store(is_last ? -1 : until_cut - num_read);
  return !is_last;
}

void Relay::reset(Connection& connection) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  for (FileDescriptor* socket : {&connection.from, &connection.to}) {
    setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    *socket = FileDescriptor();
  }
}

}  // namespace axon::transport
