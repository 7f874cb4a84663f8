#include "transport/sockets/socket_transport.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/random.hpp"
#include "transport/sockets/sockets.hpp"

namespace axon::transport {

namespace {

// Ends a transport's address. Its first four bytes are no valid length in an address of UCX.
constexpr std::array<char, 12> kMark{'\xff', '\xff', '\xff', '\xff', 'a', 'x', 'o', 'n', 'r', 'a', 'i', 'l'};

// An address: what precedes it, that of its rails, the latter's length, and the mark.
struct Divided {
  std::span<const std::byte> before;
  std::span<const std::byte> rails;
};

std::optional<Divided> divide(std::span<const std::byte> address) noexcept {
  uint32_t num_bytes = 0;
  constexpr size_t kEnd = sizeof num_bytes + kMark.size();
  if (address.size() < kEnd || std::memcmp(address.last(kMark.size()).data(), kMark.data(), kMark.size()) != 0)
    return std::nullopt;
  std::memcpy(&num_bytes, address.last(kEnd).data(), sizeof num_bytes);
  address = address.first(address.size() - kEnd);
  if (num_bytes > address.size()) return std::nullopt;
  return Divided{.before = address.first(address.size() - num_bytes), .rails = address.last(num_bytes)};
}

Result<RailAddress> decode(std::span<const std::byte> address) {
  const std::optional<Divided> divided = divide(address);
  if (divided) return RailAddress::decode(divided->rails);
  return Status(ErrorCode::kInvalidArgument,
                "its process uses UCX alone: AXON_TRANSPORTS must name ucx for all processes, or for none");
}

}  // namespace

std::span<const std::byte> preceding_sockets(std::span<const std::byte> address) noexcept {
  const std::optional<Divided> divided = divide(address);
  return divided ? divided->before : std::span<const std::byte>();
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
  Result<RailAddress> address = RailAddress::of_devices(devices, random_number());
  if (!address.ok() && devices.empty()) address = RailAddress::of_devices(std::span(&kLoopback, 1), random_number());
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
      links_(port_->address().name),
      rails_(port_->address().name, messages_, *this),
      connector_(*port_, links_, messages_, rails_, *this) {
  const auto num_bytes = static_cast<uint32_t>(address_.size());
  const auto length = std::as_bytes(std::span(&num_bytes, 1));
  address_.insert(address_.end(), length.begin(), length.end());
  const auto mark = std::as_bytes(std::span(kMark));
  address_.insert(address_.end(), mark.begin(), mark.end());
}

Status SocketTransport::open_events() {
  AXON_TRY(rails_.open());
  return connector_.open();
}

SocketTransport::~SocketTransport() {
  for (SocketLink& link : links_.all()) {
    rails_.close_all_of(link);
    messages_.release_all_of(link);
  }
}

void SocketTransport::set_receiver(Receiver& receiver) noexcept {
  receiver_ = &receiver;
  messages_.set_receiver(receiver);
}

// ---- Peers

Result<PeerId> SocketTransport::add_peer(std::span<const std::byte> packed, bool same_host) {
  Result<RailAddress> address = decode(packed);
  if (!address.ok()) return std::move(address.status());
  return add_link(std::move(address).value(), same_host);
}

Result<PeerId> SocketTransport::add_link(RailAddress address, bool same_host) {
  SocketLink* const known = links_.find(address.name);
  SocketLink& link = known != nullptr && known->loss.ok() ? *known : links_.make(address.name);
  if (!link.is_self) {
    if (link.peer) return Status(ErrorCode::kInvalidArgument, "its process was added as another peer");
    AXON_TRY(port_->start());
  }
  const PeerId id = links_.number(link);
  if (link.is_self) return id;
  if (!same_host && !address.takes_turns) subnets_.order_by_nearness(address.addresses);
  link.address = std::make_shared<const RailAddress>(std::move(address));
  link.is_elsewhere = !same_host;
  return id;
}

// One of the two processes connects now, so that they seldom do so at once. After a loss both do. So a process that has
// not noticed it finds out at once, and not within a second.
Status SocketTransport::watch_peer(PeerId id) noexcept {
  SocketLink& link = links_.of(id);
  if (!link.is_elsewhere || link.is_watched || !link.loss.ok()) return Status();
  link.is_watched = true;
  if (!link.rails.empty()) return Status();
  const bool connects_now = port_->address().name < link.name || link.was_connected;
  if (!connects_now || !connector_.connect(link).ok()) connector_.connect_later(link);
  return Status();
}

size_t SocketTransport::num_descriptors_to_come(PeerId id) const noexcept {
  const SocketLink& link = links_.of(id);
  const bool may_connect = !link.is_self && (!link.is_elsewhere || link.is_watched);
  return may_connect && link.loss.ok() && link.rails.empty() ? SocketConnector::kDescriptorsOfALink : 0;
}

Result<std::vector<Lane>> SocketTransport::lanes(PeerId id) {
  SocketLink& link = links_.of(id);
  if (!link.loss.ok()) return link.loss.clone();
  if (link.is_self) return std::vector<Lane>{{.name = "self", .device = "memory"}};
  if (link.rails.empty()) AXON_TRY(connector_.connect(link));
  for (const IpAddress& address : link.address->addresses) {
    const std::string device = device_towards(address);
    if (!device.empty()) return std::vector<Lane>{{.name = "tcp", .device = device}};
  }
  return Status(ErrorCode::kTransport, "no device of this host leads to it");
}

// ---- Messages

std::optional<Status> SocketTransport::send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                            Completion& completion) noexcept {
  if (payload.num_bytes > kLargestEager) return send_rendezvous(peer, header, payload, completion);
  SocketLink& link = links_.of(peer);
  if (!link.loss.ok()) return link.loss.clone();
  if (link.is_self) {
    receiver_->on_message(header, {.bytes = payload.data, .num_bytes = payload.num_bytes});
    return Status();
  }
  if (link.rails.empty()) [[unlikely]]
    AXON_TRY(connector_.connect(link));
  const FrameHeader frame{
      .num_bytes = static_cast<uint32_t>(payload.num_bytes), .kind = FrameKind::kMessage, .message = header};
  FrameWriting writing{.header = frame, .payload = payload};
  writing.num_sent = rails_.write_at_once(link, writing);
  if (writing.num_sent == writing.num_bytes()) return Status();
  OutgoingMessage& message = messages_.enqueue(link, frame, payload, &completion);
  if (writing.num_sent != 0) SocketRails::continue_with(message, writing);
  return std::nullopt;
}

std::optional<Status> SocketTransport::send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                                       Completion& completion) noexcept {
  SocketLink& link = links_.of(peer);
  if (!link.loss.ok()) return link.loss.clone();
  if (link.is_self) return messages_.send_to_self(link, header, payload, completion);
  if (link.rails.empty()) [[unlikely]]
    AXON_TRY(connector_.connect(link));
  const FrameHeader frame{.kind = FrameKind::kRts, .position = payload.num_bytes, .message = header};
  messages_.enqueue(link, frame, payload, &completion);
  rails_.write_to(link);
  return std::nullopt;
}

std::optional<Status> SocketTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  note_end_of(rendezvous);
  return messages_.fetch(rendezvous, into, completion);
}

void SocketTransport::refuse(void* rendezvous, const Status& why) noexcept {
  note_end_of(rendezvous);
  messages_.refuse(rendezvous, why);
}

// It may be the last message of a lost peer.
void SocketTransport::note_end_of(void* rendezvous) noexcept {
  if (!SocketMessages::link_of(rendezvous).loss.ok()) links_.note_loss();
}

// ---- Ends

void SocketTransport::on_tick() noexcept {
  const bool are_due_again = connector_.connect_due();
  rails_.look_after();
  // Afterwards, since the completions of a lost peer may have sent something to others.
  if (!are_due_again && !rails_.are_to_be_looked_after()) rails_.stop_timer();
}

void SocketTransport::lose(SocketLink& link, Status why) noexcept {
  if (!link.loss.ok()) return;
  link.loss = std::move(why);
  links_.note_loss();
  rails_.close_all_of(link);
  connector_.cancel(link);
  if (link.peer) receiver_->on_peer_lost(*link.peer, link.loss.clone());
  messages_.end_all_of(link);
  messages_.finish_ended();
}

// The caller may free the memory of transfers with this peer when this returns.
void SocketTransport::drop_peer(PeerId id) noexcept {
  SocketLink& link = links_.of(id);
  if (!link.loss.ok()) return;
  link.loss = Status(ErrorCode::kPeerLost, "its connection has been given up");
  rails_.close_all_of(link);
  connector_.cancel(link);
  dropped_.push_back(&link);
}

// ---- Progress

bool SocketTransport::has_work() const noexcept {
  return connector_.has_arrivals() || messages_.has_ended() || !dropped_.empty() || messages_.has_scheduled();
}

unsigned SocketTransport::progress() noexcept {
  rails_.free_closed();
  if (!dropped_.empty()) [[unlikely]] {
    for (SocketLink* const link : std::exchange(dropped_, {})) messages_.end_all_of(*link);
    links_.note_loss();
  }
  links_.free_lost();
  const unsigned num_arrived = connector_.handle_arrivals();
  const unsigned num_moved = rails_.progress();
  return num_arrived + num_moved + messages_.finish_ended();
}

// Returns whether the other host has acknowledged everything. Acknowledged bytes are delivered even if this process
// closes its socket before it has read all messages, which resets the connection.
bool SocketTransport::is_at_rest(const SocketLink& link) noexcept {
  return !link.loss.ok() || (!link.is_sending() && SocketRails::has_delivered(link));
}

void SocketTransport::flush(int timeout_ms) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!std::ranges::all_of(links_.all(), &SocketTransport::is_at_rest) && Clock::now() < deadline) progress();
}

}  // namespace axon::transport
