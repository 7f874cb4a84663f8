#include "transport/preferred/preferred_transport.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "base/resources.hpp"
#include "transport/preferred/preferred.hpp"
#include "transport/rails/rail_handshakes.hpp"

namespace axon::transport {

Result<std::unique_ptr<Transport>> with_preferred(std::unique_ptr<Transport> preferred, SocketNetwork common) {
  auto joined = std::make_unique<PreferredTransport>(std::move(preferred), std::move(common));
  AXON_TRY(joined->open());
  return std::unique_ptr<Transport>(std::move(joined));
}

PreferredTransport::Side::Side(PreferredTransport& whose, std::unique_ptr<Transport> which)
    : owner(whose), network(std::move(which)) {
  network->set_receiver(*this);
}

PreferredTransport::PreferredTransport(std::unique_ptr<Transport> preferred, SocketNetwork common)
    : port_(*common.port), preferred_(*this, std::move(preferred)), common_(*this, std::move(common.transport)) {
  for (const Side* side : {&preferred_, &common_}) {
    const auto address = side->network->address();
    address_.insert(address_.end(), address.begin(), address.end());
  }
}

Status PreferredTransport::open() {
  events_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!events_.valid()) return out_of("epoll_create1", errno);
  for (const Side* side : {&preferred_, &common_}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, side->network->event_fd(), &event) != 0)
      return out_of("epoll_ctl", errno);
  }
  return Status();
}

// ---- Peers

static void note_fallback(const Status& why) {
  log::info("a peer is reached over rails, since the preferred network does not: " + why.message());
}

// The preferred network is for other hosts alone. A peer that it does not reach may use the common one, so the port
// answers from now on.
Result<PeerId> PreferredTransport::add_peer(std::span<const std::byte> address, bool same_host) {
  const auto id = static_cast<PeerId>(peers_.size());
  const std::span<const std::byte> preferred = preceding_sockets(address);
  if (!same_host && !preferred.empty()) {
    AXON_TRY(port_.start());
    Result<Peer> added = add_to(preferred_, preferred, same_host, id);
    if (added.ok()) {
      peers_.push_back(std::move(added).value());
      peers_.back().address.assign(address.begin(), address.end());
      return id;
    }
    if (added.status().code() == ErrorCode::kResourceExhausted) return std::move(added.status());
    note_fallback(added.status());
  }
  Result<Peer> added = add_to(common_, address, same_host, id);
  if (!added.ok()) return std::move(added.status());
  peers_.push_back(std::move(added).value());
  return id;
}

Result<PreferredTransport::Peer> PreferredTransport::add_to(Side& side, std::span<const std::byte> address,
                                                            bool same_host, PeerId id) {
  Result<PeerId> added = side.network->add_peer(address, same_host);
  if (!added.ok()) return std::move(added.status());
  side.peers.resize(std::max<size_t>(side.peers.size(), added.value() + 1));
  side.peers[added.value()] = id;
  return Peer{.side = &side, .id = added.value()};
}

// Only a connection tells whether the preferred network reaches the peer.
Status PreferredTransport::choose_network(PeerId id) {
  Peer& peer = peers_[id];
  if (peer.address.empty()) [[likely]]
    return Status();
  Status connected = peer.network().watch_peer(peer.id);
  if (connected.code() == ErrorCode::kResourceExhausted) return connected;
  if (!connected.ok()) {
    note_fallback(connected);
    Result<Peer> added = add_to(common_, peer.address, /*same_host=*/false, id);
    if (!added.ok()) return std::move(added.status());
    peer = std::move(added).value();
  }
  peer.address.clear();
  return Status();
}

Status PreferredTransport::watch_peer(PeerId id) noexcept {
  AXON_TRY(choose_network(id));
  return peers_[id].network().watch_peer(peers_[id].id);
}

size_t PreferredTransport::num_descriptors_to_come(PeerId id) const noexcept {
  return peers_[id].network().num_descriptors_to_come(peers_[id].id);
}

Result<std::vector<Lane>> PreferredTransport::lanes(PeerId id) {
  AXON_TRY(choose_network(id));
  return peers_[id].network().lanes(peers_[id].id);
}

void PreferredTransport::drop_peer(PeerId id) noexcept {
  peers_[id].network().drop_peer(peers_[id].id);
}

bool PreferredTransport::has_unread(PeerId id) const noexcept {
  return peers_[id].network().has_unread(peers_[id].id);
}

void PreferredTransport::Side::on_peer_lost(PeerId peer, Status reason) noexcept {
  owner.receiver_->on_peer_lost(peers[peer], std::move(reason));
}

// ---- Messages

void PreferredTransport::Side::on_message(const MessageHeader& header, const Payload& payload) noexcept {
  Payload marked = payload;
  if (this == &owner.common_ && payload.rendezvous != nullptr)
    marked.rendezvous = CommonHandle::of(*static_cast<std::byte*>(payload.rendezvous));
  owner.receiver_->on_message(header, marked);
}

std::optional<Status> PreferredTransport::send(PeerId id, const MessageHeader& header, ConstBuffer payload,
                                               Completion& completion) noexcept {
  AXON_TRY(choose_network(id));
  const Peer& peer = peers_[id];
  return peer.network().send(peer.id, header, payload, completion);
}

std::optional<Status> PreferredTransport::send_rendezvous(PeerId id, const MessageHeader& header, ConstBuffer payload,
                                                          Completion& completion) noexcept {
  AXON_TRY(choose_network(id));
  const Peer& peer = peers_[id];
  return peer.network().send_rendezvous(peer.id, header, payload, completion);
}

std::optional<Status> PreferredTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  if (std::byte* const common = CommonHandle::find(rendezvous)) return common_.network->fetch(common, into, completion);
  return preferred_.network->fetch(rendezvous, into, completion);
}

void PreferredTransport::refuse(void* rendezvous, const Status& why) noexcept {
  if (std::byte* const common = CommonHandle::find(rendezvous)) return common_.network->refuse(common, why);
  preferred_.network->refuse(rendezvous, why);
}

// A peer that is stuck in one network leaves half of the time to the other one.
void PreferredTransport::flush(int timeout_ms) noexcept {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  preferred_.network->flush(timeout_ms / 2);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  common_.network->flush(std::max(0, static_cast<int>(left.count())));
}

}  // namespace axon::transport
