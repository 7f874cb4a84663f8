#include "transport/tcp_fragments/fragment_transport.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/random.hpp"
#include "transport/flush_layer.hpp"
#include "transport/nack.hpp"

namespace axon::transport {

// The most fragments of one peer that the network holds at once: enough that a socket never waits, few enough that
// other messages wait only briefly.
static constexpr size_t kMostInFlight = 8;
// The most fragments of one peer sent in one pass, even if the network takes more; then other peers have their turn.
static constexpr unsigned kMostSentAtOnce = 16;

// The network reports to it the completion of its RTS and of its fragments.
struct FragmentTransport::Outgoing : Completion, ListNode<Outgoing> {
  // Waiting for the CTS; waiting for its turn to send fragments; all fragments sent, or the transfer has failed.
  enum class State : uint8_t { kWaiting, kCleared, kLeaving };

  Outgoing(FragmentTransport& transport, PeerId to, ConstBuffer bytes, Completion& of) noexcept
      : owner(transport), peer(to), payload(bytes), completion(of) {
    done = [](Completion& self, Status status) noexcept {
      auto& message = static_cast<Outgoing&>(self);
      message.owner.on_sent(message, std::move(status));
    };
  }

  FragmentTransport& owner;
  const PeerId peer;
  const ConstBuffer payload;
  Completion& completion;
  State state = State::kWaiting;
  LongMessage rts;
  uint64_t number = 0;
  uint64_t ticket = 0;
  size_t num_pushed = 0;     // bytes
  size_t num_in_flight = 0;  // RTS and fragments that the network is sending
  Status failure;
};

FragmentTransport::Peer::Peer() noexcept {
  done = [](Completion& self, Status status) noexcept {
    auto& peer = static_cast<Peer&>(self);
    if (!status.ok()) peer.owner->distrust(peer, status);
  };
}

struct FragmentTransport::Incoming : ListNode<Incoming> {
  Incoming(uint64_t of_sender, const LongMessage& rts) noexcept
      : sender(rts.sender), number(of_sender), num_bytes(rts.num_bytes) {}

  size_t num_fragments() const noexcept { return (num_bytes + kTcpFragmentBytes - 1) / kTcpFragmentBytes; }
  size_t seen_num_bytes() const noexcept { return (num_fragments() + 7) / 8; }

  const uint64_t sender;
  const uint64_t number;
  const size_t num_bytes;
  // Set when the CTS is sent.
  Buffer into;
  Completion* completion = nullptr;
  uint64_t ticket = 0;
  size_t num_missing = 0;   // fragments
  uint8_t* seen = nullptr;  // a bit for each fragment
};

// A NACK, whose text must live until the network has sent it.
struct FragmentTransport::Nack : Completion, ListNode<Nack> {
  Nack(FragmentTransport& transport, PeerId to, const Status& why) noexcept : owner(transport), peer(to), reason(why) {
    done = [](Completion& self, Status status) noexcept {
      auto& nack = static_cast<Nack&>(self);
      if (!status.ok()) nack.owner.distrust(nack.owner.peers_[nack.peer], status);
      nack.owner.release(nack);
    };
  }

  FragmentTransport& owner;
  const PeerId peer;
  const nack::Encoded reason;
};

std::unique_ptr<Transport> with_fragments(std::unique_ptr<Transport> network, FragmentUse use) {
  return std::make_unique<FragmentTransport>(std::move(network), use);
}

static Status gone() {
  return {ErrorCode::kPeerLost, "its process is gone, or has been given up"};
}

FragmentTransport::FragmentTransport(std::unique_ptr<Transport> network, FragmentUse use)
    : use_(use), name_(random_number()), network_(std::move(network)) {
  const auto below = network_->address();
  const auto name = std::as_bytes(std::span(&name_, 1));
  address_.assign(below.begin(), below.end());
  address_.insert(address_.end(), name.begin(), name.end());
  network_->set_receiver(*this);
}

FragmentTransport::~FragmentTransport() {
  network_.reset();  // the network refers to the objects that are released below
  while (Incoming* message = held_.front()) release(*message);
  while (Nack* nack = nacks_.front()) release(*nack);
  for (Peer& peer : peers_) {
    for (IntrusiveList<Outgoing>* list : {&peer.waiting, &peer.cleared, &peer.leaving}) {
      while (Outgoing* message = list->front()) (void)release(*message);
    }
    while (Incoming* message = peer.fetched.front()) release(*message);
  }
}

// ---- Peers

Result<PeerId> FragmentTransport::add_peer(std::span<const std::byte> address, bool same_host) {
  uint64_t name = 0;
  if (address.size() < sizeof name) {
    return Status(ErrorCode::kInvalidArgument,
                  "not a transport address: " + std::to_string(address.size()) + " bytes, expected at least 8");
  }
  std::memcpy(&name, address.last(sizeof name).data(), sizeof name);
  Result<PeerId> added = network_->add_peer(address.first(address.size() - sizeof name), same_host);
  if (!added.ok()) return added;
  while (peers_.size() <= added.value()) peers_.emplace_back();
  Peer& peer = peers_[added.value()];
  peer.owner = this;
  peer.id = added.value();
  peer.name = name;
  if (use_ != FragmentUse::kToOtherHosts || same_host) peer.takes_fragments = use_ == FragmentUse::kToAll;
  return added;
}

std::optional<PeerId> FragmentTransport::peer_named(uint64_t name) const noexcept {
  const auto found = std::ranges::find_if(peers_, [&](const Peer& peer) { return peer.name == name && !peer.is_gone; });
  if (found == peers_.end()) return std::nullopt;
  return static_cast<PeerId>(found - peers_.begin());
}

bool FragmentTransport::goes_in_fragments(PeerId id, ConstBuffer payload) noexcept {
  if (payload.num_bytes <= kLongestWhole || payload.kind != MemoryKind::kHost) return false;
  Peer& peer = peers_[id];
  if (!peer.takes_fragments) {
    auto lanes = network_->lanes(id);
    if (!lanes.ok()) return false;  // the network reports the failure
    const auto is_tcp = [](const Lane& lane) { return lane.name == "tcp"; };
    peer.takes_fragments = !lanes.value().empty() && std::ranges::all_of(lanes.value(), is_tcp);
  }
  return *peer.takes_fragments && !peer.is_gone;
}

void FragmentTransport::drop_peer(PeerId id) noexcept {
  network_->drop_peer(id);
  part_with(peers_[id], gone(), /*is_news=*/false);
}

// A message that lacks a fragment never ends, at either end. The connection is therefore ended at both.
void FragmentTransport::distrust(Peer& peer, const Status& failure) noexcept {
  Status why(ErrorCode::kPeerLost, "a fragment of a long message could not be sent to it: " + failure.message());
  part_with(peer, std::move(why), /*is_news=*/true);
}

// Transfers in progress end in the next progress(), which may call completions.
void FragmentTransport::part_with(Peer& peer, Status why, bool is_news) noexcept {
  if (std::exchange(peer.is_gone, true)) return;
  partings_.push_back({.peer = peer.id, .why = std::move(why), .is_news = is_news});
}

void FragmentTransport::on_peer_lost(PeerId id, Status reason) noexcept {
  Peer& peer = peers_[id];
  peer.is_gone = true;
  std::erase_if(partings_, [&](const Parting& parting) { return parting.peer == id; });
  end_all_with(peer, reason);
  receiver_->on_peer_lost(id, std::move(reason));
}

// Fragments that the network still holds keep their message alive until they are sent.
void FragmentTransport::end_all_with(Peer& peer, const Status& why) noexcept {
  for (IntrusiveList<Outgoing>* list : {&peer.waiting, &peer.cleared}) {
    while (Outgoing* message = list->front()) conclude(*message, why.clone());
  }
  while (Incoming* message = peer.fetched.front()) {
    Completion& completion = *message->completion;
    release(*message);
    completion.done(completion, why.clone());
  }
}

// ---- Sending

std::optional<Status> FragmentTransport::send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                              Completion& completion) noexcept {
  return goes_in_fragments(peer, payload) ? send_rts(peer, header, payload, completion)
                                          : network_->send(peer, header, payload, completion);
}

std::optional<Status> FragmentTransport::send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                                         Completion& completion) noexcept {
  return goes_in_fragments(peer, payload) ? send_rts(peer, header, payload, completion)
                                          : network_->send_rendezvous(peer, header, payload, completion);
}

std::optional<Status> FragmentTransport::send_rts(PeerId id, const MessageHeader& header, ConstBuffer payload,
                                                  Completion& completion) noexcept {
  Peer& peer = peers_[id];
  auto& message = *new (pool_.allocate(sizeof(Outgoing))) Outgoing(*this, id, payload, completion);
  message.rts = {.header = header, .sender = name_, .num_bytes = payload.num_bytes};
  message.number = numbers_.add(message);
  peer.waiting.push_back(message);
  const auto bytes = std::as_bytes(std::span(&message.rts, 1));
  auto sent = hand_over(message, {.key = peer.name, .kind = MessageKind::kRts, .number = message.number},
                        {.data = bytes.data(), .num_bytes = bytes.size()});
  if (!sent) return std::nullopt;
  if (!sent->ok()) give_up(message, std::move(*sent));
  return is_over(message) ? std::optional(release(message)) : std::nullopt;
}

// A fragment that the network keeps is counted until on_sent; one that was sent at once is not counted.
std::optional<Status> FragmentTransport::hand_over(Outgoing& message, const RendezvousHeader& header,
                                                   ConstBuffer bytes) noexcept {
  Peer& peer = peers_[message.peer];
  ++message.num_in_flight;
  ++peer.num_in_flight;
  auto sent = network_->send(message.peer, header, bytes, message);
  if (!sent) return std::nullopt;
  --message.num_in_flight;
  --peer.num_in_flight;
  if (!sent->ok()) distrust(peer, *sent);
  return sent;
}

bool FragmentTransport::has_work() const noexcept {
  const auto can_push = [](const Peer& peer) { return !peer.cleared.empty() && peer.num_in_flight < kMostInFlight; };
  return !partings_.empty() || (num_cleared_ != 0 && std::ranges::any_of(peers_, can_push));
}

unsigned FragmentTransport::progress() noexcept {
  for (Parting& parting : std::exchange(partings_, {})) {
    end_all_with(peers_[parting.peer], parting.why);
    if (!parting.is_news) continue;
    network_->drop_peer(parting.peer);
    receiver_->on_peer_lost(parting.peer, std::move(parting.why));
  }
  unsigned num_moved = network_->progress();
  for (size_t id = 0; id < peers_.size() && num_cleared_ != 0; ++id) num_moved += push_data(peers_[id]);
  return num_moved;
}

unsigned FragmentTransport::push_data(Peer& peer) noexcept {
  unsigned num_pushed = 0;
  for (; num_pushed < kMostSentAtOnce && peer.num_in_flight < kMostInFlight; ++num_pushed) {
    Outgoing* const message = peer.cleared.pop_front();
    if (message == nullptr) break;
    push_data(*message);
  }
  return num_pushed;
}

void FragmentTransport::push_data(Outgoing& message) noexcept {
  const size_t offset = message.num_pushed;
  const ConstBuffer fragment =
      message.payload.slice(offset, std::min(kTcpFragmentBytes, message.payload.num_bytes - offset));
  message.num_pushed += fragment.num_bytes;
  if (message.num_pushed == message.payload.num_bytes) {
    leave(message);
  } else {
    peers_[message.peer].cleared.push_back(message);
  }
  const RendezvousHeader header{
      .key = peers_[message.peer].name, .kind = MessageKind::kData, .ticket = message.ticket, .offset = offset};
  if (auto sent = hand_over(message, header, fragment)) conclude(message, std::move(*sent));
}

void FragmentTransport::on_sent(Outgoing& message, Status status) noexcept {
  Peer& peer = peers_[message.peer];
  --message.num_in_flight;
  --peer.num_in_flight;
  if (!status.ok()) distrust(peer, status);
  conclude(message, std::move(status));
}

void FragmentTransport::conclude(Outgoing& message, Status status) noexcept {
  if (!status.ok()) give_up(message, std::move(status));
  if (!is_over(message)) return;
  Completion& completion = message.completion;
  completion.done(completion, release(message));
}

void FragmentTransport::give_up(Outgoing& message, Status why) noexcept {
  if (message.failure.ok()) message.failure = std::move(why);
  if (message.state != Outgoing::State::kLeaving) leave(message);
}

// A message from the peer that names this transfer from now on is late.
void FragmentTransport::leave(Outgoing& message) noexcept {
  if (message.state == Outgoing::State::kCleared) --num_cleared_;
  message.state = Outgoing::State::kLeaving;
  numbers_.remove(message.number);
  message.unlink();
  peers_[message.peer].leaving.push_back(message);
}

bool FragmentTransport::is_over(const Outgoing& message) noexcept {
  return message.state == Outgoing::State::kLeaving && message.num_in_flight == 0;
}

// Frees the message and returns the status of its transfer.
Status FragmentTransport::release(Outgoing& message) noexcept {
  Status ended = std::move(message.failure);
  message.unlink();
  message.~Outgoing();
  pool_.release(&message, sizeof message);
  return ended;
}

bool FragmentTransport::receive_cts(uint64_t number, uint64_t ticket) noexcept {
  Outgoing* const message = numbers_.find(number);
  if (message == nullptr) return numbers_.was_here(number);
  if (message->state != Outgoing::State::kWaiting) return false;
  message->state = Outgoing::State::kCleared;
  message->ticket = ticket;
  message->unlink();
  peers_[message->peer].cleared.push_back(*message);
  ++num_cleared_;
  return true;
}

bool FragmentTransport::receive_nack(uint64_t number, const Payload& payload) noexcept {
  if (payload.num_bytes > nack::Encoded::kMostBytes) return false;
  Outgoing* const message = numbers_.find(number);
  if (message == nullptr) return numbers_.was_here(number);
  if (message->state != Outgoing::State::kWaiting) return false;
  conclude(*message, nack::decode({payload.bytes, payload.num_bytes}));
  return true;
}

// ---- Receiving

void FragmentTransport::on_message(const MessageHeader& header, const Payload& payload) noexcept {
  if (family_of(header.kind) != MessageFamily::kRendezvous) [[likely]]
    return receiver_->on_message(header, payload);
  const bool is_for_this = header.key == name_ && payload.rendezvous == nullptr;
  if (is_for_this && receive(header.as<RendezvousHeader>(), payload)) return;
  if (payload.rendezvous != nullptr) network_->refuse(payload.rendezvous, Status());
  receiver_->on_refused("a fragment message that belongs to no long message of this process");
}

// Returns whether the message is valid. False: no transport of ours sends such a message.
bool FragmentTransport::receive(const RendezvousHeader& header, const Payload& payload) noexcept {
  switch (header.kind) {
    case MessageKind::kRts:
      return receive_rts(header.number, payload);
    case MessageKind::kCts:
      return payload.num_bytes == 0 && receive_cts(header.number, header.ticket);
    case MessageKind::kNack:
      return receive_nack(header.number, payload);
    default:
      return receive_data(header.ticket, header.offset, payload);
  }
}

bool FragmentTransport::receive_rts(uint64_t number, const Payload& payload) noexcept {
  LongMessage rts;
  if (payload.num_bytes != sizeof rts) return false;
  std::memcpy(&rts, payload.bytes, sizeof rts);
  if (rts.num_bytes == 0 || family_of(rts.header.kind) == MessageFamily::kRendezvous) return false;
  auto& message = *new (pool_.allocate(sizeof(Incoming))) Incoming(number, rts);
  held_.push_back(message);
  receiver_->on_message(rts.header, {.num_bytes = message.num_bytes, .rendezvous = Handle::of(message)});
  return true;
}

std::optional<Status> FragmentTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  Incoming* const message = Handle::find(rendezvous);
  if (message == nullptr) return network_->fetch(rendezvous, into, completion);
  const std::optional<PeerId> peer = peer_named(message->sender);
  if (!peer || into.num_bytes != message->num_bytes || into.kind != MemoryKind::kHost) {
    Status why =
        peer ? Status(ErrorCode::kInternal, "the length or kind of the memory to fetch into differs from the message's")
             : gone();
    refuse(rendezvous, why);
    return why;
  }
  message->into = into;
  message->completion = &completion;
  message->ticket = tickets_.add(*message);
  message->num_missing = message->num_fragments();
  message->seen = static_cast<uint8_t*>(pool_.allocate(message->seen_num_bytes()));
  std::memset(message->seen, 0, message->seen_num_bytes());
  message->unlink();
  peers_[*peer].fetched.push_back(*message);
  answer(peers_[*peer],
         {.key = message->sender, .kind = MessageKind::kCts, .number = message->number, .ticket = message->ticket});
  return std::nullopt;
}

void FragmentTransport::answer(Peer& peer, const RendezvousHeader& header) noexcept {
  if (const auto sent = network_->send(peer.id, header, {}, peer); sent && !sent->ok()) distrust(peer, *sent);
}

// A sender that was never added as a peer, or is gone, cannot be notified.
void FragmentTransport::refuse(void* rendezvous, const Status& why) noexcept {
  Incoming* const message = Handle::find(rendezvous);
  if (message == nullptr) return network_->refuse(rendezvous, why);
  if (const auto peer = peer_named(message->sender)) send_nack(peers_[*peer], message->number, why);
  release(*message);
}

void FragmentTransport::send_nack(Peer& peer, uint64_t number, const Status& why) noexcept {
  auto& nack = *new (pool_.allocate(sizeof(Nack))) Nack(*this, peer.id, why);
  nacks_.push_back(nack);
  const auto text = nack.reason.bytes();
  const RendezvousHeader header{.key = peer.name, .kind = MessageKind::kNack, .number = number};
  auto sent = network_->send(peer.id, header, {.data = text.data(), .num_bytes = text.size()}, nack);
  if (sent) nack.done(nack, std::move(*sent));
}

void FragmentTransport::release(Nack& nack) noexcept {
  nack.unlink();
  nack.~Nack();
  pool_.release(&nack, sizeof nack);
}

bool FragmentTransport::receive_data(uint64_t ticket, uint64_t offset, const Payload& payload) noexcept {
  Incoming* const message = tickets_.find(ticket);
  if (message == nullptr) return tickets_.was_here(ticket);
  if (offset >= message->num_bytes || offset % kTcpFragmentBytes != 0) return false;
  if (payload.num_bytes != std::min<size_t>(kTcpFragmentBytes, message->num_bytes - offset)) return false;
  const size_t index = offset / kTcpFragmentBytes;
  uint8_t& seen = message->seen[index / 8];
  const auto bit = static_cast<uint8_t>(1U << index % 8);
  if ((seen & bit) != 0) return false;
  seen |= bit;
  std::memcpy(message->into.data + offset, payload.bytes, payload.num_bytes);
  if (--message->num_missing != 0) return true;
  Completion& completion = *message->completion;
  release(*message);
  completion.done(completion, Status());
  return true;
}

void FragmentTransport::release(Incoming& message) noexcept {
  message.unlink();
  if (message.seen != nullptr) {
    tickets_.remove(message.ticket);
    pool_.release(message.seen, message.seen_num_bytes());
  }
  message.~Incoming();
  pool_.release(&message, sizeof message);
}

// ---- Both

void FragmentTransport::flush(int timeout_ms) noexcept {
  const auto has_sent = [](const Peer& peer) {
    return peer.is_gone || (peer.waiting.empty() && peer.cleared.empty() && peer.leaving.empty());
  };
  flush_layer(*this, *network_, timeout_ms, [&] { return std::ranges::all_of(peers_, has_sent); });
}

}  // namespace axon::transport
