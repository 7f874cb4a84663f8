#include "transport/rings/ring_transport.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/random.hpp"
#include "base/resources.hpp"
#include "transport/flush_layer.hpp"

namespace axon::transport {

// The most messages that one pass reads from one ring, so that other rings and the waiters have their turn.
static constexpr unsigned kMostReadAtOnce = 16;
static constexpr unsigned kMostCalls = 64;

std::unique_ptr<Transport> with_rings(std::unique_ptr<Transport> network, RingUse use) {
  return std::make_unique<RingTransport>(std::move(network), use);
}

RingTransport::RingTransport(std::unique_ptr<Transport> network, RingUse use) : network_(std::move(network)) {
  shared_.reads_processes = use == RingUse::kAlways;
  Status opened = use == RingUse::kNever ? Status() : open_doorbell();
  if (!opened.ok()) log::warn("messages between processes of this host take the network: " + opened.message());
  const auto below = network_->address();
  const auto end = std::as_bytes(std::span(&shared_.own, 1));
  address_.assign(below.begin(), below.end());
  address_.insert(address_.end(), end.begin(), end.end());
  network_->set_receiver(*this);
}

// Other processes may be reading this process's memory, whose content is no longer valid. They find another key.
RingTransport::~RingTransport() {
  std::atomic_ref(shared_.own.key).store(0, std::memory_order_release);
  if (doorbell_) doorbell_->close();
}

Status RingTransport::open_doorbell() {
  const uint64_t key = random_number();
  Result<RingDoorbell> doorbell = RingDoorbell::make(key);
  if (!doorbell.ok()) return std::move(doorbell.status());
  FileDescriptor events(epoll_create1(EPOLL_CLOEXEC));
  for (const int descriptor : {doorbell.value().pipe(), network_->event_fd()}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
    if (epoll_ctl(events.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return out_of("epoll_ctl", errno);
    }
  }
  events_ = std::move(events);
  shared_.own = {.key = key,
                 .identity = reinterpret_cast<uint64_t>(&shared_.own.key),
                 .pid = getpid(),
                 .page = doorbell.value().page(),
                 .pipe = doorbell.value().pipe()};
  doorbell_.emplace(std::move(doorbell).value());
  return Status();
}

// ---- Peers and links

Result<PeerId> RingTransport::add_peer(std::span<const std::byte> address, bool same_host) {
  if (address.size() < sizeof(RingAddress)) {
    return Status(ErrorCode::kInvalidArgument,
                  "not a transport address: " + std::to_string(address.size()) + " bytes, expected at least 32");
  }
  RingAddress end;
  std::memcpy(&end, address.last(sizeof end).data(), sizeof end);
  RingLink* const known = find_link(end);
  if (known != nullptr && peer_of(*known)) {
    return Status(ErrorCode::kInvalidArgument, "the ring address belongs to a process that was added as another peer");
  }
  Result<PeerId> added = network_->add_peer(address.first(address.size() - sizeof end), same_host);
  if (!added.ok()) return added;
  peers_.resize(std::max<size_t>(peers_.size(), added.value() + 1));
  if (!doorbell_ || end.key == 0 || end.key == shared_.own.key) return added;
  Peer& peer = peers_[added.value()];
  peer.address = end;
  // A process whose ring is read here is on this host, even if only the other process could verify that.
  if (known != nullptr || same_host) peer.link = known != nullptr ? known : &links_.emplace_back(shared_, end);
  return added;
}

RingLink* RingTransport::find_link(const RingAddress& address) noexcept {
  const auto found = std::ranges::find_if(links_, [&](const RingLink& link) { return link.is_of(address); });
  return found != links_.end() ? &*found : nullptr;
}

// Returns false if the number of links has reached its limit. In that case tidy() looks for links whose process is
// gone.
bool RingTransport::use(RingLink& link) noexcept {
  if (std::ranges::find(live_, &link) != live_.end()) return true;
  is_to_tidy_ |= live_.size() >= kMostLinks;
  if (live_.size() >= kMostLinks) return false;
  live_.push_back(&link);
  return true;
}

std::optional<PeerId> RingTransport::peer_of(const RingLink& link) const noexcept {
  const auto found = std::ranges::find(peers_, &link, &Peer::link);
  if (found == peers_.end()) return std::nullopt;
  return static_cast<PeerId>(found - peers_.begin());
}

RingLink* RingTransport::link_to(Peer& peer) noexcept {
  RingLink* const link = peer.link;
  if (link == nullptr || peer.is_dropped) return nullptr;
  if (link->state() == RingLink::State::kNew) [[unlikely]] {
    if (!use(*link)) {  // all its messages take the network from now on
      peer.link = nullptr;
      return nullptr;
    }
    link->connect();
  }
  return link->state() == RingLink::State::kNetwork ? nullptr : link;
}

size_t RingTransport::num_descriptors_to_come(PeerId id) const noexcept {
  const Peer& peer = peers_[id];
  if (peer.is_dropped) return 0;
  if (peer.link == nullptr || peer.link->state() == RingLink::State::kNetwork) {
    return network_->num_descriptors_to_come(id);
  }
  return peer.link->state() == RingLink::State::kNew ? kDescriptorsOfALink : 0;
}

Result<std::vector<Lane>> RingTransport::lanes(PeerId id) {
  RingLink* const link = link_to(peers_[id]);
  if (link == nullptr) return network_->lanes(id);
  std::vector<Lane> lanes{{.name = "ring", .device = "memory", .pid = link->pid()}};
  if (link->reads_memory()) lanes.push_back({.name = "cma", .device = "memory", .pid = link->pid()});
  return lanes;
}

// ---- Messages

std::optional<Status> RingTransport::send(PeerId id, const MessageHeader& header, ConstBuffer payload,
                                          Completion& completion) noexcept {
  RingLink* const link = link_to(peers_[id]);
  return link != nullptr ? link->send(header, payload, completion) : network_->send(id, header, payload, completion);
}

std::optional<Status> RingTransport::send_rendezvous(PeerId id, const MessageHeader& header, ConstBuffer payload,
                                                     Completion& completion) noexcept {
  RingLink* const link = link_to(peers_[id]);
  return link != nullptr ? link->send_rendezvous(header, payload, completion)
                         : network_->send_rendezvous(id, header, payload, completion);
}

std::optional<Status> RingTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  RingLink::Arrival* const arrival = RingLink::Handle::find(rendezvous);
  return arrival != nullptr ? RingLink::fetch(*arrival, into, completion)
                            : network_->fetch(rendezvous, into, completion);
}

void RingTransport::refuse(void* rendezvous, const Status& why) noexcept {
  RingLink::Arrival* const arrival = RingLink::Handle::find(rendezvous);
  arrival != nullptr ? RingLink::refuse(*arrival, why) : network_->refuse(rendezvous, why);
}

bool RingTransport::withdraw(PeerId id, const CallHeader& call) noexcept {
  return can_withdraw(id) && peers_[id].link->withdraw(call);
}

bool RingTransport::can_withdraw(PeerId id) const noexcept {
  const RingLink* const link = peers_[id].link;
  return link != nullptr && link->is_live();
}

// A receiver may add peers meanwhile, so the loop uses indices.
unsigned RingTransport::read_rings() noexcept {
  unsigned num_moved = 0;
  for (size_t i = 0; i < live_.size(); ++i) {
    RingLink& link = *live_[i];
    num_moved += link.advance() + link.read(kMostReadAtOnce);
    is_to_tidy_ |= link.fault() != nullptr || link.state() == RingLink::State::kNetwork;
  }
  return num_moved;
}

unsigned RingTransport::progress() noexcept {
  if (!doorbell_) return network_->progress();
  if (is_to_tidy_) [[unlikely]]
    tidy();
  unsigned num_moved = 0;
  if (doorbell_->has_calls()) [[unlikely]] {
    num_moved = answer_calls();
    doorbell_->wake();  // a thread that has armed it may not sleep yet
  }
  num_moved += read_rings();
  return num_moved + network_->progress();
}

bool RingTransport::arm() noexcept {
  if (!doorbell_) return network_->arm();
  for (RingLink* link : live_) link->fall_asleep();
  if (answer_calls() != 0) return false;
  const auto is_awake = [](const RingLink* link) { return link->has_message() || link->has_work(); };
  const auto awake = std::ranges::find_if(live_, is_awake);
  if (awake == live_.end()) return !is_to_tidy_ && network_->arm();
  is_to_tidy_ |= !peer_of(**awake);  // the process of a link without a peer is not watched
  return false;
}

bool RingTransport::has_unread(PeerId id) const noexcept {
  const RingLink* const link = peers_[id].link;
  return link != nullptr && link->has_message();
}

// Messages that it wrote before its death are still delivered. A ring holds no more than this loop reads.
void RingTransport::on_peer_lost(PeerId peer, Status reason) noexcept {
  RingLink* const link = peers_[peer].link;
  for (uint32_t i = 0; link != nullptr && i <= RingMemory::kNumEntries / kMostReadAtOnce; ++i)
    link->read(kMostReadAtOnce);
  shared_.receiver->on_peer_lost(peer, std::move(reason));
}

void RingTransport::flush(int timeout_ms) noexcept {
  const auto is_at_rest = [](const RingLink* link) { return link->is_at_rest(); };
  flush_layer(*this, *network_, timeout_ms, [&] { return std::ranges::all_of(live_, is_at_rest); });
}

// ---- Calls

// A kWake call needs no answer: it has made the descriptor readable.
unsigned RingTransport::answer_calls() noexcept {
  unsigned num_answered = 0;
  RingCall call;
  bool finds_foreign = false;
  while (num_answered < kMostCalls && doorbell_->next(call, finds_foreign)) {
    ++num_answered;
    if (call.kind == RingCall::Kind::kRing) on_ring_offered(call);
  }
  if (finds_foreign) on_refused("a doorbell call for another process, or invalid bytes");
  return num_answered;
}

// Refuses a ring from a process that accepts none itself, from this process, which needs none, and a second ring from
// one process.
void RingTransport::on_ring_offered(const RingCall& call) noexcept {
  const RingAddress& caller = call.caller;
  RingLink* link = find_link(caller);
  const bool is_known = link != nullptr;
  if (caller.key == 0 || caller.key == shared_.own.key || (is_known && link->reads())) {
    return on_refused("a ring offered by a process that may not offer one now");
  }
  if (!is_known) link = &links_.emplace_back(shared_, caller);
  const bool has_room = !link->is_live() || use(*link);  // one that has ended needs none
  const bool can_read = has_room && link->is_live();
  const Status read = can_read ? read_ring_of(call, *link) : Status(ErrorCode::kTransport, "no usable link");
  const auto met = std::ranges::find(peers_, caller, &Peer::address);
  const bool is_met = met != peers_.end() && !met->is_dropped;
  if (read.ok()) {
    if (is_met) met->link = link;
    return;
  }
  const bool is_for_want = read.code() == ErrorCode::kResourceExhausted;  // the caller may try again
  doorbell_->refuse(is_for_want ? call.number | RingCall::kForWant : call.number);
  if (!is_known) {
    std::erase(live_, link);
    links_.pop_back();
  } else if (!has_room) {
    if (is_met) met->link = nullptr;  // messages to it take the network, too
  } else if (!is_for_want) {
    link->refuse_ring();
  }
}

// The caller may be gone, or this process may not access it. Neither is a protocol violation.
Status RingTransport::read_ring_of(const RingCall& call, RingLink& link) noexcept {
  Status opened = link.open(call.descriptor);
  if (opened.ok()) return opened;
  if (opened.code() == ErrorCode::kInvalidArgument) on_refused("an offered ring whose memory is not a ring");
  log::info("messages from process " + std::to_string(call.caller.pid) + " cannot use a ring: " + opened.message());
  return opened;
}

// ---- Ends

void RingTransport::drop_peer(PeerId id) noexcept {
  network_->drop_peer(id);
  peers_[id].is_dropped = is_to_tidy_ = true;
}

// Handles a link that has a fault, or whose peer accepts no ring of ours.
void RingTransport::look_after(RingLink& link) noexcept {
  const std::optional<PeerId> peer = peer_of(link);
  const bool is_gone = !peer && link.is_gone();
  if (link.fault() != nullptr && peer && !peers_[*peer].is_dropped) {
    shared_.receiver->on_peer_lost(*peer, {ErrorCode::kPeerLost, link.fault()});
  }
  if (link.fault() != nullptr || is_gone) {
    link.lose();
  } else if (link.state() == RingLink::State::kNetwork && peer) {
    link.hand_over(*network_, *peer);
  }
}

// Must not run while rings are read, since it removes links.
void RingTransport::tidy() noexcept {
  is_to_tidy_ = false;
  for (const Peer& peer : peers_) {
    const bool is_to_end = peer.is_dropped && peer.link != nullptr;
    if (is_to_end && peer.link->state() != RingLink::State::kLost) peer.link->lose();
  }
  for (size_t i = 0; i < live_.size(); ++i) look_after(*live_[i]);
  std::erase_if(live_, [](const RingLink* link) { return !link->is_live(); });
}

}  // namespace axon::transport
