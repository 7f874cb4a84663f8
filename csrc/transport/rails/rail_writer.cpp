#include "transport/rails/rail_writer.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "base/tcp_socket.hpp"

namespace axon::transport {

// The most that one call sends. It bounds how long remove() waits. Longer writes also make bbr underestimate the link,
// since they hold the socket while acknowledgements arrive.
static constexpr size_t kMostAtOnce = size_t{256} << 10;
// The most bytes in a socket that have not left it. The system would let several stripes in, which a slow device then
// holds while the rails over others are idle. Bytes on the way do not count, so a long link loses nothing.
static constexpr int kMostUnsent = 256 << 10;
// Calls for one connection before others have their turn.
static constexpr unsigned kMostCalls = 16;

void RailWriter::add(FileDescriptor socket, PeerId peer, const Digest& key) {
  {
    const std::lock_guard lock(mutex_);
    added_.emplace_back(*this, std::move(socket), peer, key);
  }
  wake();
}

void RailWriter::drop(PeerId peer) {
  {
    const std::lock_guard lock(mutex_);
    dropped_.push_back(peer);
    std::erase_if(added_, [&](const Connection& connection) { return connection.peer == peer; });
  }
  wake();
}

void RailWriter::on_wake() noexcept {
  std::list<Connection> added;
  std::vector<PeerId> dropped;
  {
    const std::lock_guard lock(mutex_);
    added.swap(added_);
    dropped.swap(dropped_);
  }
  for (Connection& connection : connections_) {
    if (std::ranges::find(dropped, connection.peer) != dropped.end()) close(connection);
  }
  remove_broken();
  while (!added.empty()) {
    connections_.splice(connections_.end(), added, added.begin());
    Connection& connection = connections_.back();
    set_option(connection.socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMostUnsent);
    Status watched = watch(connection.socket, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, &connection);
    events_.push({.kind = RailEvent::Kind::kOpened, .peer = connection.peer, .rail = rail_, .why = {}});
    if (!watched.ok()) break_off(connection, watched.message());
  }
  has_more_ = true;
}

// A receiver sends nothing over a rail, so whatever can be read is its end.
void RailWriter::on_event(void* watched, uint32_t events) noexcept {
  auto& connection = *static_cast<Connection*>(watched);
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0) {
    const int error = error_of(connection.socket);
    break_off(connection, error != 0 ? std::generic_category().message(error) : "the other end has closed it");
    return;
  }
  connection.is_blocked = false;
  has_more_ = true;
}

int RailWriter::on_round() noexcept {
  if (has_more_) {
    has_more_ = false;
    for (Connection& connection : connections_) send_stripes(connection);
  }
  const Clock::time_point now = Clock::now();
  if (now >= next_look_) {
    next_look_ = now + Silence::kLookInterval;
    for (Connection& connection : connections_) look_after(connection);
  }
  remove_broken();
  if (has_more_) return 0;
  const auto awaits_peer = [](const Connection& each) { return each.is_blocked || each.silence.is_awaited(); };
  if (!std::ranges::any_of(connections_, awaits_peer)) return -1;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(next_look_ - now).count());
}

void RailWriter::send_stripes(Connection& connection) noexcept {
  for (unsigned i = 0; i < kMostCalls; ++i) {
    if (connection.is_blocked || !connection.socket.valid()) return;
    if (!connection.stripe && !begin_stripe(connection)) return;
    if (const int error = send_some(connection); error != 0) {
      break_off(connection, std::generic_category().message(error));
    }
  }
  has_more_ = true;
}

bool RailWriter::begin_stripe(Connection& connection) noexcept {
  connection.stripe = outgoing_.take(connection.peer, rail_);
  if (!connection.stripe) {
    connection.encoder.release();
    return false;
  }
  connection.encoder.forget();
  const OutgoingStripes::Stripe& stripe = *connection.stripe;
  const auto num_bytes = static_cast<uint32_t>(stripe.num_bytes);
  connection.header = {
      .ticket = stripe.ticket, .offset = stripe.offset, .num_bytes = num_bytes, .num_carried = num_bytes};
  measure(connection);
  compress(connection);
  connection.header.seal = connection.sealer.next(connection.header);
  connection.num_sent = 0;
  return true;
}

void RailWriter::measure(Connection& connection) noexcept {
  if (!connection.link.measure(connection.socket)) return;
  events_.push(
      {.kind = connection.link.speed() == LinkSpeed::Speed::kFast ? RailEvent::Kind::kIsFast : RailEvent::Kind::kIsSlow,
       .peer = connection.peer,
       .rail = rail_,
       .why = {}});
}

void RailWriter::compress(Connection& connection) noexcept {
  const OutgoingStripes::Stripe& stripe = *connection.stripe;
  const bool link_is_slow = connection.link.speed() == LinkSpeed::Speed::kSlow;
  if (!connection.encoder.may_encode(stripe.dtype, link_is_slow)) return;
  const StripePayload payload = outgoing_.open(stripe, 0);
  if (payload.state() != StripePayload::State::kNeeded) return;
  if (!connection.encoder.encode(stripe, {payload.data(), stripe.num_bytes}, link_is_slow)) return;
  connection.header.num_carried = static_cast<uint32_t>(connection.encoder.bytes().size());
  connection.header.format = static_cast<uint8_t>(*connection.encoder.format());
}

// The rest of a stripe whose message has been acknowledged meanwhile is filled up: its receiver has got the stripe by
// another rail, and drops these bytes. A stripe of a message that was given up must never end, nor be filled up.
int RailWriter::send_some(Connection& connection) noexcept {
  static constexpr std::array<std::byte, size_t{16} << 10> kFiller{};
  const OutgoingStripes::Stripe& stripe = *connection.stripe;
  const size_t header_left = sizeof(StripeHeader) - std::min(connection.num_sent, sizeof(StripeHeader));
  const size_t payload_sent = connection.num_sent + header_left - sizeof(StripeHeader);
  const size_t num_carried = connection.header.num_carried;
  const std::span<const std::byte> encoded = connection.encoder.bytes();
  const auto* const header =
      reinterpret_cast<const std::byte*>(&connection.header) + sizeof(StripeHeader) - header_left;
  ssize_t num_sent = 0;
  {
    const StripePayload payload = outgoing_.open(stripe, encoded.empty() ? payload_sent : 0);
    if (payload.state() == StripePayload::State::kGone) return ECANCELED;
    const bool is_needed = payload.state() == StripePayload::State::kNeeded;
    const std::byte* const data = !encoded.empty() ? encoded.data() + payload_sent
                                  : is_needed      ? payload.data()
                                                   : kFiller.data();
    const size_t most = is_needed || !encoded.empty() ? kMostAtOnce : kFiller.size();
    std::array<iovec, 2> parts{{{const_cast<std::byte*>(header), header_left},
                                {const_cast<std::byte*>(data), std::min(most, num_carried - payload_sent)}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    num_sent = ::sendmsg(connection.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (num_sent < 0 && errno == EINTR) return 0;
  connection.is_blocked = num_sent < 0 && may_go_on(errno);
  if (num_sent < 0) return connection.is_blocked ? 0 : errno;
  connection.silence.note_sent();
  connection.num_sent += static_cast<size_t>(num_sent);
  if (connection.num_sent == sizeof(StripeHeader) + num_carried) end_stripe(connection);
  return 0;
}

void RailWriter::end_stripe(Connection& connection) noexcept {
  if (connection.stripe) outgoing_.finish(*connection.stripe);
  connection.stripe.reset();
}

void RailWriter::look_after(Connection& connection) noexcept {
  if (connection.silence.look(connection.socket, connection.is_blocked))
    break_off(connection, connection.silence.describe());
}

// The connection stays in the list until the end of the round.
void RailWriter::close(Connection& connection) noexcept {
  end_stripe(connection);
  connection.encoder.release();
  unwatch(connection.socket);
  connection.socket = FileDescriptor();
  connection.is_blocked = false;
  connection.silence = Silence();
}

void RailWriter::break_off(Connection& connection, const std::string& why) noexcept {
  if (!connection.socket.valid()) return;
  close(connection);
  events_.push({.kind = RailEvent::Kind::kBroken,
                .peer = connection.peer,
                .rail = rail_,
                .why = Status(ErrorCode::kPeerLost, why)});
}

void RailWriter::remove_broken() noexcept {
  std::erase_if(connections_, [](const Connection& connection) { return !connection.socket.valid(); });
}

}  // namespace axon::transport
