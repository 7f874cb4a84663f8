#include "transport/rings/ring_transport.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/random.hpp"

namespace axon {

// A look at what has come takes no more from one ring, so that the others, and those who wait, have their turn.
static constexpr unsigned kMostAtOnce = 16;
// Of what a ring may hold.
static constexpr unsigned kAll = RingMemory::kNumLines;

// What is not to overtake what was sent before.
static bool comes_last(OperationKind kind) noexcept {
  return kind == OperationKind::kClose || kind >= OperationKind::kFailureNotice;
}

std::unique_ptr<Transport> with_rings(std::unique_ptr<Transport> network, RingUse use) {
  return std::make_unique<RingTransport>(std::move(network), use);
}

RingTransport::RingTransport(std::unique_ptr<Transport> network, RingUse use)
    : network_(std::move(network)), own_{.key = use == RingUse::kNever ? 0 : random_number()} {
  const auto below = network_->address();
  const auto end = std::as_bytes(std::span(&own_, 1));
  address_.assign(below.begin(), below.end());
  address_.insert(address_.end(), end.begin(), end.end());
  network_->set_receiver(*this);
}

Result<PeerId> RingTransport::add_peer(std::span<const std::byte> address, bool same_host) {
  if (address.size() < sizeof(RingAddress)) {
    return Status(ErrorCode::kInvalidArgument,
                  "an address of " + std::to_string(address.size()) + " bytes, which is no transport's");
  }
  RingAddress end;
  std::memcpy(&end, address.last(sizeof end).data(), sizeof end);
  Result<PeerId> added = network_->add_peer(address.first(address.size() - sizeof end), same_host);
  if (!added.ok()) return added;
  peers_.resize(std::max<size_t>(peers_.size(), added.value() + 1));
  Peer& peer = peers_[added.value()];
  peer.key = end.key;
  peer.takes_ring = same_host && own_.key != 0 && end.key != 0 && end.key != own_.key;
  return added;
}

Result<std::vector<Lane>> RingTransport::lanes(PeerId id) {
  Result<std::vector<Lane>> lanes = network_->lanes(id);
  Peer& peer = peers_[id];
  if (lanes.ok() && peer.writer && peer.writer->is_read()) {
    lanes.value().insert(lanes.value().begin(), {.name = "ring", .device = "memory"});
  }
  return lanes;
}

std::optional<Status> RingTransport::send(PeerId id, const MessageHeader& header, ConstBuffer payload,
                                          Completion& completion) noexcept {
  Peer& peer = peers_[id];
  const bool fits = peer.takes_ring && payload.num_bytes <= RingMemory::kMostBytes &&
                    payload.kind == MemoryKind::kHost && !comes_last(header.fingerprint.operation);
  if (!fits || !peer.writer || !peer.writer->is_read()) {
    if (fits && !peer.writer) offer_ring(id, peer);
    return network_->send(id, header, payload, completion);
  }
  switch (peer.writer->write(header, payload)) {
    case RingWriter::Outcome::kFull:
      return network_->send(id, header, payload, completion);
    case RingWriter::Outcome::kWrittenToSleeper:  // sent once the reader has been woken, which may need more driving
      return send_word(id, OperationKind::kRingWake, {}, completion);
    case RingWriter::Outcome::kWritten:
      break;
  }
  return Status();
}

void RingTransport::offer_ring(PeerId id, Peer& peer) noexcept {
  Result<RingWriter> made = num_writers_ < kMostRings
                                ? RingWriter::make()
                                : Status(ErrorCode::kResourceExhausted, "there are as many rings as may be");
  if (!made.ok()) {
    log::info("no ring for short messages to a process of this host: " + made.status().message());
    peer.takes_ring = false;
    return;
  }
  ++num_writers_;
  peer.writer.emplace(std::move(made).value());
  peer.offer = {.key = own_.key, .pid = getpid(), .descriptor = peer.writer->descriptor()};
  const auto bytes = std::as_bytes(std::span(&peer.offer, 1));
  // If it cannot leave, whoever watches the peer knows why.
  [[maybe_unused]] const auto sent =
      send_word(id, OperationKind::kRingOffer, {.data = bytes.data(), .num_bytes = bytes.size()}, unattended);
}

// Between two transports.
std::optional<Status> RingTransport::send_word(PeerId peer, OperationKind kind, ConstBuffer payload,
                                               Completion& completion) noexcept {
  MessageHeader header;
  header.key = peers_[peer].key;
  header.fingerprint.operation = kind;
  return network_->send(peer, header, payload, completion);
}

void RingTransport::on_message(const MessageHeader& header, const Payload& payload) noexcept {
  const OperationKind kind = header.fingerprint.operation;
  if (kind < OperationKind::kRingOffer) {
    read_rings(kAll);
    return receiver_->on_message(header, payload);
  }
  if (payload.rendezvous != nullptr) network_->refuse(payload.rendezvous);
  const bool is_for_us = own_.key != 0 && header.key == own_.key && payload.rendezvous == nullptr;
  if (is_for_us && kind == OperationKind::kRingOffer) return on_offer(payload);
  if (!is_for_us || kind != OperationKind::kRingWake) on_refused("what is between transports, but not for this one");
}

// Who offers may be gone, or dropped, or not to be looked into by this process: that is nobody's fault.
void RingTransport::on_offer(const Payload& payload) noexcept {
  RingOffer offer;
  if (payload.num_bytes != sizeof offer) return on_refused("an offer of a ring that is none");
  std::memcpy(&offer, payload.bytes, sizeof offer);
  const auto is_of_offerer = [&](const auto& each) { return each.key == offer.key; };
  // Of who takes none, and so makes none; of this process, which needs none; or once more.
  if (offer.key == 0 || offer.key == own_.key || std::ranges::any_of(readings_, is_of_offerer)) {
    return on_refused("an offer of a ring by nobody who offers one now");
  }
  const auto peer = std::ranges::find_if(peers_, is_of_offerer);
  if (readings_.size() >= kMostRings || (peer != peers_.end() && peer->is_dropped)) return;
  Result<RingReader> ring = RingReader::open(offer.pid, offer.descriptor);
  if (!ring.ok()) {
    if (ring.status().code() == ErrorCode::kInvalidArgument) on_refused("an offer of a ring whose memory is none");
    return log::info("short messages from process " + std::to_string(offer.pid) +
                     " take no ring: " + ring.status().message());
  }
  readings_.push_back({.key = offer.key, .ring = std::move(ring).value()});
}

void RingTransport::on_peer_lost(PeerId peer, Status reason) noexcept {
  receiver_->on_peer_lost(peer, std::move(reason));
}

// Receivers may send to their own process, which comes back here.
unsigned RingTransport::read_rings(unsigned most_of_each) noexcept {
  if (std::exchange(is_reading_, true)) return 0;
  unsigned num_read = 0;
  for (Reading& reading : readings_) {
    num_read += reading.ring.read(most_of_each, [this](const MessageHeader& header, const Payload& payload) {
      receiver_->on_message(header, payload);
    });
    is_to_tidy_ |= reading.ring.is_broken();
  }
  is_reading_ = false;
  return num_read;
}

unsigned RingTransport::progress() noexcept {
  if (is_to_tidy_) [[unlikely]]
    tidy();
  const unsigned num_read = read_rings(kMostAtOnce);
  return num_read + network_->progress();
}

bool RingTransport::arm() noexcept {
  for (Reading& reading : readings_) reading.ring.fall_asleep();
  const auto has_message = [](const Reading& reading) { return reading.ring.has_message(); };
  return std::ranges::none_of(readings_, has_message) && network_->arm();
}

void RingTransport::drop_peer(PeerId id) noexcept {
  network_->drop_peer(id);
  Peer& peer = peers_[id];
  peer.takes_ring = false;
  peer.is_dropped = is_to_tidy_ = true;
}

// Not while rings are read.
void RingTransport::tidy() noexcept {
  is_to_tidy_ = false;
  for (Peer& peer : peers_) {
    if (!peer.is_dropped || !peer.writer) continue;
    peer.writer.reset();
    --num_writers_;
  }
  for (auto next = readings_.begin(); next != readings_.end();) {
    const auto reading = next++;
    const auto peer = std::ranges::find(peers_, reading->key, &Peer::key);  // none: not met yet
    const bool is_dropped = peer != peers_.end() && peer->is_dropped;
    const bool is_broken = reading->ring.is_broken();
    if (is_broken || is_dropped) readings_.erase(reading);
    if (is_broken) on_refused("a ring whose content no process of ours writes");
    if (!is_broken || is_dropped || peer == peers_.end()) continue;
    receiver_->on_peer_lost(static_cast<PeerId>(peer - peers_.begin()),
                            {ErrorCode::kPeerLost, "what it writes into shared memory makes no sense"});
  }
}

}  // namespace axon
