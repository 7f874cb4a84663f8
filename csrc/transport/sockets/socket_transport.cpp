// Peers and rails of SocketTransport: how they begin and end.
#include "transport/sockets/socket_transport.hpp"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/random.hpp"
#include "base/resources.hpp"
#include "base/tcp_socket.hpp"
#include "transport/sockets/socket_link.hpp"
#include "transport/sockets/sockets.hpp"

namespace axon::transport {

// A process may have a rail of its own and one of its peer's for a moment.
static constexpr size_t kDescriptorsOfALink = 2;
static constexpr std::chrono::milliseconds kRetryInterval{100};
// For how long a port that ends every handshake is tried again: its process may have been stopped meanwhile.
static constexpr std::chrono::seconds kMostRefusals{10};
// The other rails are polled in every fourth call of progress(); the latest one in every call.
static constexpr unsigned kPollInterval = 4;

// Ends a transport's address, after that of its rails. Its first four bytes are no valid length in an address of UCX.
static constexpr std::array<char, 12> kMark{'\xff', '\xff', '\xff', '\xff', 'a', 'x', 'o', 'n', 'r', 'a', 'i', 'l'};

static Result<RailAddress> decode(std::span<const std::byte> address) {
  const bool is_marked =
      address.size() >= kMark.size() && std::memcmp(address.last(kMark.size()).data(), kMark.data(), kMark.size()) == 0;
  if (is_marked) return RailAddress::decode(address.first(address.size() - kMark.size()));
  return Status(ErrorCode::kInvalidArgument,
                "its process uses another network: all processes must name the same one of ucx and rails in "
                "AXON_TRANSPORTS");
}

// ---- Opening and closing

Result<SocketNetwork> open_sockets(std::span<const std::string> devices) {
  auto transport = SocketTransport::open(devices);
  if (!transport.ok()) return std::move(transport.status());
  RailHandshakes& port = transport.value()->port();
  return SocketNetwork{.transport = std::move(transport).value(), .port = &port};
}

Result<std::unique_ptr<SocketTransport>> SocketTransport::open(std::span<const std::string> devices) {
  static const std::string kLoopback = "lo";
  const bool has_no_other = devices.empty() && addresses_of_devices({}).empty();
  Result<RailAddress> address =
      RailAddress::of_devices(has_no_other ? std::span(&kLoopback, 1) : devices, random_number());
  if (!address.ok()) return std::move(address.status());
  auto port = RailHandshakes::open(std::move(address).value());
  if (!port.ok()) return std::move(port.status());
  std::unique_ptr<SocketTransport> transport(new SocketTransport(std::move(port).value()));
  AXON_TRY(transport->open_events());
  return transport;
}

SocketTransport::SocketTransport(std::unique_ptr<RailHandshakes> port)
    : port_(std::move(port)),
      address_(port_->address().encode()),
      gone_(std::make_unique<Link>(uint64_t{0})),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(kScratchBytes)) {
  const auto mark = std::as_bytes(std::span(kMark));
  address_.insert(address_.end(), mark.begin(), mark.end());
  gone_->loss = Status(ErrorCode::kPeerLost, "its process is gone, or has been given up");
  port_->serve(RailUse::kMessages, this);
}

Status SocketTransport::open_events() {
  events_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!events_.valid()) return out_of("epoll_create1", errno);
  timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return out_of("timerfd_create", errno);
  AXON_TRY(arrivals_.open());
  AXON_TRY(watch(timer_, EPOLLIN, &timer_));
  return watch(arrivals_.event(), EPOLLIN, &arrivals_);
}

Status SocketTransport::watch(const FileDescriptor& descriptor, uint32_t events, void* mark) noexcept {
  epoll_event event{.events = events, .data = {.ptr = mark}};
  if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) == 0) return Status();
  return out_of("epoll_ctl", errno);
}

SocketTransport::~SocketTransport() {
  port_->serve(RailUse::kMessages, nullptr);
  for (Link& link : links_) {
    close_rails(link);
    for (IntrusiveList<Outgoing>* list : {&link.queue, &link.announced, &link.cleared, &link.in_writing}) {
      while (Outgoing* const message = list->front()) release(*message);
    }
    for (IntrusiveList<Incoming>* list : {&link.held, &link.fetched}) {
      while (Incoming* const message = list->front()) release(*message);
    }
  }
}

// ---- Peers

bool SocketTransport::is_self(const Link& link) const noexcept {
  return link.name == port_->address().name;
}

SocketTransport::Link& SocketTransport::make_link(uint64_t name) {
  Link& link = links_.emplace_back(name);
  link_of_[name] = &link;
  return link;
}

Result<PeerId> SocketTransport::add_peer(std::span<const std::byte> packed, bool same_host) {
  Result<RailAddress> address = decode(packed);
  if (!address.ok()) return std::move(address.status());
  const uint64_t name = address.value().name;
  const auto known = link_of_.find(name);
  const bool is_known = known != link_of_.end() && known->second->loss.ok();
  Link& link = is_known ? *known->second : make_link(name);
  const auto id = static_cast<PeerId>(peers_.size());
  if (!is_self(link)) {
    if (link.peer) return Status(ErrorCode::kInvalidArgument, "its process was added as another peer");
    AXON_TRY(port_->start());
  }
  link.peer = id;
  peers_.push_back(&link);
  if (is_self(link)) return id;
  if (!address.value().takes_turns) order_by_nearness(address.value().addresses);
  link.address = std::make_shared<const RailAddress>(std::move(address).value());
  link.is_elsewhere = !same_host;
  if (same_host || !link.connections.empty()) return id;
  // One of the two connects now, so that they seldom do so at once.
  if (port_->address().name < name) {
    if (Status connected = connect(link); connected.ok()) return id;
  }
  connect_later(link);
  return id;
}

size_t SocketTransport::num_descriptors_to_come(PeerId id) const noexcept {
  const Link& link = *peers_[id];
  return link.loss.ok() && link.connections.empty() && !is_self(link) ? kDescriptorsOfALink : 0;
}

size_t SocketTransport::num_open_rails(PeerId id) const noexcept {
  return peers_[id]->connections.size();
}

Result<std::vector<Lane>> SocketTransport::lanes(PeerId id) {
  Link& link = *peers_[id];
  if (!link.loss.ok()) return link.loss.clone();
  if (is_self(link)) return std::vector<Lane>{{.name = "self", .device = "memory"}};
  if (link.connections.empty()) AXON_TRY(connect(link));
  for (const IpAddress& address : link.address->addresses) {
    const std::string device = device_towards(address);
    if (!device.empty()) return std::vector<Lane>{{.name = "tcp", .device = device}};
  }
  return Status(ErrorCode::kTransport, "no device of this host leads to it");
}

bool SocketTransport::has_unread(PeerId id) const noexcept {
  return std::ranges::any_of(peers_[id]->connections, [](const Connection* connection) {
    std::byte next;
    return ::recv(connection->socket.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
  });
}

// ---- Connecting

// Fails only for want of descriptors.
Status SocketTransport::connect(Link& link) noexcept {
  if (link.is_connecting) return Status();
  AXON_TRY(check_descriptors(kDescriptorsOfALink, "connect to it"));
  request_rail(link, {});
  return Status();
}

void SocketTransport::request_rail(Link& link, Clock::time_point not_before) noexcept {
  link.is_connecting = true;
  link.is_to_connect = false;
  port_->connect({.peer = *link.peer, .rail = kMessageRail, .address = link.address, .not_before = not_before});
}

void SocketTransport::connect_later(Link& link) noexcept {
  link.is_to_connect = true;
  start_timer();
}

void SocketTransport::on_connected(const RailRequest& request, FileDescriptor socket, const Digest& /*key*/) noexcept {
  arrivals_.push({.kind = RailArrival::Kind::kConnected, .request = request, .socket = std::move(socket), .why = {}});
}

void SocketTransport::on_not_connected(const RailRequest& request, Status why) noexcept {
  arrivals_.push({.kind = RailArrival::Kind::kNotConnected,
                  .request = request,
                  .socket = FileDescriptor(),
                  .why = std::move(why)});
}

void SocketTransport::on_accepted(uint64_t name, uint32_t /*rail*/, FileDescriptor socket,
                                  const Digest& /*key*/) noexcept {
  arrivals_.push(
      {.kind = RailArrival::Kind::kAccepted, .name = name, .request = {}, .socket = std::move(socket), .why = {}});
}

void SocketTransport::on_stranger(const char* what) noexcept {
  arrivals_.push({.kind = RailArrival::Kind::kStranger,
                  .request = {},
                  .socket = FileDescriptor(),
                  .why = Status(ErrorCode::kUnauthenticated, what)});
}

unsigned SocketTransport::handle_arrivals() noexcept {
  std::vector<RailArrival> arrivals = arrivals_.take();
  for (RailArrival& arrival : arrivals) handle(arrival);
  return static_cast<unsigned>(arrivals.size());
}

void SocketTransport::handle(RailArrival& arrival) noexcept {
  switch (arrival.kind) {
    case RailArrival::Kind::kConnected: {
      Link& link = *peers_[arrival.request.peer];
      link.is_connecting = false;
      return add_rail(link, std::move(arrival.socket), Connector::kThis);
    }
    case RailArrival::Kind::kAccepted:
      return on_accepted(arrival);
    case RailArrival::Kind::kNotConnected:
      return on_not_connected(*peers_[arrival.request.peer], arrival);
    case RailArrival::Kind::kStranger:
      return receiver_->on_refused(arrival.why.message().c_str());
  }
}

// The other process may be added as a peer a moment later. One that was lost stays lost.
void SocketTransport::on_accepted(RailArrival& arrival) noexcept {
  const auto known = link_of_.find(arrival.name);
  if (known == link_of_.end() && lost_names_.contains(arrival.name)) return;
  Link& link = known != link_of_.end() ? *known->second : make_link(arrival.name);
  const auto is_theirs = [](const Connection* each) { return each->connector == Connector::kPeer; };
  if (is_self(link) || std::ranges::any_of(link.connections, is_theirs))
    return receiver_->on_refused("a second rail for messages from the same process");
  add_rail(link, std::move(arrival.socket), Connector::kPeer);
}

// A port that accepts connections and does not answer may be that of a stopped process, for which there is no deadline.
void SocketTransport::on_not_connected(Link& link, RailArrival& arrival) noexcept {
  link.is_connecting = false;
  if (!link.loss.ok() || !link.connections.empty()) return;
  const Clock::time_point now = Clock::now();
  if (arrival.why.code() == ErrorCode::kResourceExhausted) {
    while (Outgoing* const message = link.queue.front()) end(*message, arrival.why.clone());
    if (link.is_elsewhere) connect_later(link);
    return;
  }
  const bool is_silent = arrival.why.code() == ErrorCode::kTimeout;
  if (!is_silent && !link.refused_since) link.refused_since = now;
  if (is_silent) link.refused_since.reset();
  const bool is_worth_it = is_silent || now < *link.refused_since + kMostRefusals;
  if (arrival.request.was_accepted && is_worth_it) return request_rail(link, now + kRetryInterval);
  lose(link, {ErrorCode::kPeerLost, "no connection to it can be opened: " + arrival.why.message()});
}

void SocketTransport::add_rail(Link& link, FileDescriptor socket, Connector connector) noexcept {
  if (!link.loss.ok()) return;
  Connection& connection = connections_.emplace_back(*this, link, std::move(socket), connector);
  ++num_open_;
  link.connections.push_back(&connection);
  if (Status watched = watch(connection.socket, EPOLLIN, &connection); !watched.ok())
    return lose(link, {ErrorCode::kPeerLost, "its connection cannot be watched: " + watched.message()});
  link.is_to_connect = false;
  if (link.connections.size() == 2) {
    const bool is_this_smaller = port_->address().name < link.name;
    const Connector stays = is_this_smaller ? Connector::kThis : Connector::kPeer;
    if (connector == stays) std::swap(link.connections[0], link.connections[1]);
    link.connections[1]->is_to_leave = true;
  }
  schedule(link);
}

// ---- Looking after rails

void SocketTransport::start_timer() noexcept {
  const itimerspec every_interval{.it_interval = {.tv_sec = Silence::kLookInterval.count(), .tv_nsec = 0},
                                  .it_value = {.tv_sec = Silence::kLookInterval.count(), .tv_nsec = 0}};
  if (!std::exchange(is_timer_on_, true)) timerfd_settime(timer_.get(), 0, &every_interval, nullptr);
}

void SocketTransport::on_tick() noexcept {
  uint64_t num_ticks = 0;
  [[maybe_unused]] const ssize_t num_read = ::read(timer_.get(), &num_ticks, sizeof num_ticks);
  bool is_needed = false;
  for (Link& link : links_) {
    const bool is_due = link.is_to_connect && link.loss.ok() && !link.is_connecting;
    if (is_due && !connect(link).ok()) is_needed = true;
  }
  for (Connection& connection : connections_) {
    if (connection.is_closed()) continue;
    if (connection.silence.look(connection.socket, connection.is_blocked))
      lose(connection.link, {ErrorCode::kPeerLost, "its connection broke: " + connection.silence.describe()});
  }
  // Afterwards, since the completions of a lost peer may have sent something to others.
  is_needed |= std::ranges::any_of(connections_, [](const Connection& each) {
    return !each.is_closed() && (each.is_blocked || each.silence.is_awaited());
  });
  if (is_needed) return;
  is_timer_on_ = false;
  const itimerspec never{};
  timerfd_settime(timer_.get(), 0, &never, nullptr);
}

// ---- Ends

void SocketTransport::close(Connection& connection) noexcept {
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);  // a forked child may hold a copy
  connection.socket = FileDescriptor();
  std::erase(connection.link.connections, &connection);
  if (hot_ == &connection) hot_ = nullptr;
  --num_open_;
  has_closed_ = true;
}

void SocketTransport::close_rails(Link& link) noexcept {
  while (!link.connections.empty()) close(*link.connections.back());
}

// Call only within progress(), because it calls completions and the receiver.
void SocketTransport::lose(Link& link, Status why) noexcept {
  if (!link.loss.ok()) return;
  link.loss = std::move(why);
  may_free_ = true;
  close_rails(link);
  if (link.peer) port_->cancel(RailUse::kMessages, *link.peer);
  end_all_of(link);
  finish_ended();
  if (link.peer) receiver_->on_peer_lost(*link.peer, link.loss.clone());
}

// The caller may free the memory of transfers with this peer when this returns.
void SocketTransport::drop_peer(PeerId id) noexcept {
  Link& link = *peers_[id];
  if (!link.loss.ok()) return;
  link.loss = Status(ErrorCode::kPeerLost, "its connection has been given up");
  close_rails(link);
  port_->cancel(RailUse::kMessages, id);
  dropped_.push_back(&link);
}

// Messages that the receiver holds refer to their link until it fetches or refuses them.
void SocketTransport::free_lost_links() noexcept {
  links_.remove_if([this](Link& link) {
    if (link.loss.ok() || link.has_messages()) return false;
    forget(link);
    return true;
  });
}

void SocketTransport::forget(Link& link) noexcept {
  if (link.linked()) link.unlink();
  if (link.peer) peers_[*link.peer] = gone_.get();
  const auto latest = link_of_.find(link.name);
  if (latest != link_of_.end() && latest->second == &link) link_of_.erase(latest);
  lost_names_.insert(link.name);
}

void SocketTransport::end_all_of(Link& link) noexcept {
  for (IntrusiveList<Outgoing>* list : {&link.queue, &link.announced, &link.cleared, &link.in_writing}) {
    while (Outgoing* const message = list->front()) end(*message, link.loss.clone());
  }
  while (Incoming* const message = link.fetched.front()) end(*message, link.loss.clone());
}

void SocketTransport::end(Outgoing& message, Status status) noexcept {
  if (message.completion != nullptr) ended_.push_back({message.completion, std::move(status)});
  release(message);
}

void SocketTransport::end(Incoming& message, Status status) noexcept {
  ended_.push_back({message.completion, std::move(status)});
  release(message);
}

// Completions may end further transfers, which the next call notifies.
unsigned SocketTransport::finish_ended() noexcept {
  if (ended_.empty()) return 0;
  std::vector<Ended> ending = std::exchange(ended_, std::exchange(spare_, {}));
  for (Ended& each : ending) each.completion->done(*each.completion, std::move(each.status));
  const auto num_ended = static_cast<unsigned>(ending.size());
  ending.clear();
  spare_ = std::move(ending);
  return num_ended;
}

// ---- Progress

bool SocketTransport::has_work() const noexcept {
  return arrivals_.any() || !ended_.empty() || !dropped_.empty() || !to_write_.empty();
}

unsigned SocketTransport::progress() noexcept {
  if (has_closed_) [[unlikely]] {
    has_closed_ = false;
    connections_.remove_if([](const Connection& connection) { return connection.is_closed(); });
  }
  unsigned num_moved = 0;
  if (!dropped_.empty()) [[unlikely]] {
    for (Link* const link : std::exchange(dropped_, {})) end_all_of(*link);
    may_free_ = true;
  }
  if (std::exchange(may_free_, false)) [[unlikely]]
    free_lost_links();
  if (arrivals_.any()) [[unlikely]]
    num_moved += handle_arrivals();
  if (hot_ != nullptr) num_moved += read(*hot_);
  const bool is_turn_of_all = hot_ == nullptr || ++num_polls_ % kPollInterval == 0;
  if (is_turn_of_all && (num_open_ != 0 || is_timer_on_)) num_moved += poll_sockets();
  if (!to_write_.empty()) num_moved += write_waiting();
  return num_moved + finish_ended();
}

// Returns whether the other host has acknowledged everything. Acknowledged bytes are delivered even if this process
// closes its socket before it has read all messages, which resets the connection.
bool SocketTransport::is_at_rest(Link& link) noexcept {
  const auto has_sent = [](const Connection* connection) {
    int num_bytes = 0;
    return !connection->writing && ioctl(connection->socket.get(), SIOCOUTQ, &num_bytes) == 0 && num_bytes == 0;
  };
  if (!link.loss.ok()) return true;
  return link.queue.empty() && link.announced.empty() && link.cleared.empty() && link.in_writing.empty() &&
         std::ranges::all_of(link.connections, has_sent);
}

void SocketTransport::flush(int timeout_ms) noexcept {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!std::ranges::all_of(links_, &SocketTransport::is_at_rest) && Clock::now() < deadline) progress();
}

}  // namespace axon::transport
