// The messages of RailTransport: RTS, CTS, NACK and ACK, at both ends.
#include "transport/rails/rail_messages.hpp"

#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace axon::transport {

// ---- Sending

std::optional<Status> RailTransport::send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                          Completion& completion) noexcept {
  return takes_rails(peer, payload) ? send_rts(peer, header, payload, completion)
                                    : network_->send(peer, header, payload, completion);
}

std::optional<Status> RailTransport::send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                                     Completion& completion) noexcept {
  return takes_rails(peer, payload) ? send_rts(peer, header, payload, completion)
                                    : network_->send_rendezvous(peer, header, payload, completion);
}

std::optional<Status> RailTransport::send_rts(PeerId id, const MessageHeader& header, ConstBuffer payload,
                                              Completion& completion) noexcept {
  Peer& peer = peers_[id];
  auto& message = *new (pool_.allocate(sizeof(Outgoing))) Outgoing(*this, id, payload, completion);
  message.number = numbers_.add(message);
  message.rts = {.header = header,
                 .sender = name_,
                 .num_bytes = payload.num_bytes,
                 .stripe_num_bytes = stripe_bytes_of(payload.num_bytes, peer.open.count())};
  peer.outgoing.push_back(message);
  const auto bytes = std::as_bytes(std::span(&message.rts, 1));
  const RendezvousHeader rts{.key = peer.name, .kind = MessageKind::kRts, .number = message.number};
  auto sent = network_->send(id, rts, {.data = bytes.data(), .num_bytes = bytes.size()}, message);
  if (!sent) return std::nullopt;
  message.is_sending_rts = false;
  if (message.ended) return release(message);  // refused before this returned
  if (sent->ok()) return std::nullopt;
  distrust(peer, "a long message could not be announced to it: " + sent->message());
  withdraw(message, OutgoingStripes::Why::kGivenUp);
  (void)release(message);
  return sent;
}

void RailTransport::on_rts_sent(Outgoing& message, Status status) noexcept {
  message.is_sending_rts = false;
  Peer& peer = peers_[message.peer];
  if (!status.ok()) distrust(peer, "a long message could not be announced to it: " + status.message());
  if (!message.ended && status.ok()) return;
  if (!message.ended) withdraw(message, OutgoingStripes::Why::kGivenUp);
  Completion& completion = message.completion;
  Status ended = message.ended ? std::move(*message.ended) : std::move(status);
  (void)release(message);
  completion.done(completion, std::move(ended));
}

// Ends the transfer, now or once the network has let go of the RTS.
void RailTransport::conclude(Outgoing& message, Status status) noexcept {
  withdraw(message, status.ok() ? OutgoingStripes::Why::kAcknowledged : OutgoingStripes::Why::kGivenUp);
  message.ended = std::move(status);
  if (message.is_sending_rts) {
    message.unlink();
    peers_[message.peer].leaving.push_back(message);
    return;
  }
  Completion& completion = message.completion;
  completion.done(completion, release(message));
}

// From now on a message from the peer that names this transfer is late, and no thread reads its payload.
void RailTransport::withdraw(Outgoing& message, OutgoingStripes::Why why) noexcept {
  numbers_.remove(message.number);
  if (threads_ != nullptr && message.is_cleared) threads_->outgoing().remove(message.number, why);
}

// Frees the message and returns the status of its transfer.
Status RailTransport::release(Outgoing& message) noexcept {
  Status ended = message.ended ? std::move(*message.ended) : Status();
  message.unlink();
  message.~Outgoing();
  pool_.release(&message, sizeof message);
  return ended;
}

// Calls do not tell their type: it is bytes.
static DataType type_of(const MessageHeader& header) noexcept {
  switch (family_of(header.kind)) {
    case MessageFamily::kOperation:
      return header.as<OperationHeader>().fingerprint.dtype;
    case MessageFamily::kOneSided:
      return header.as<OneSidedHeader>().dtype;
    default:
      return DataType::kByte;
  }
}

bool RailTransport::receive_cts(uint64_t number, uint64_t ticket) noexcept {
  Outgoing* const message = numbers_.find(number);
  if (message == nullptr) return numbers_.was_here(number);
  if (std::exchange(message->is_cleared, true)) return false;
  if (peers_[message->peer].is_gone) return true;
  threads_->outgoing().add(number, {.peer = message->peer,
                                    .ticket = ticket,
                                    .payload = message->payload,
                                    .stripe_num_bytes = message->rts.stripe_num_bytes,
                                    .dtype = type_of(message->rts.header)});
  threads_->send_waiting();
  return true;
}

bool RailTransport::receive_nack(uint64_t number, const Payload& payload) noexcept {
  if (payload.num_bytes > nack::Encoded::kMostBytes) return false;
  Outgoing* const message = numbers_.find(number);
  if (message == nullptr) return numbers_.was_here(number);
  if (message->is_cleared) return false;
  conclude(*message, nack::decode({payload.bytes, payload.num_bytes}));
  return true;
}

bool RailTransport::receive_ack(uint64_t number) noexcept {
  Outgoing* const message = numbers_.find(number);
  if (message == nullptr) return numbers_.was_here(number);
  if (!message->is_cleared) return false;
  peers_[message->peer].stranded_at.reset();
  conclude(*message, Status());
  return true;
}

// ---- Receiving

void RailTransport::on_message(const MessageHeader& header, const Payload& payload) noexcept {
  if (family_of(header.kind) != MessageFamily::kRendezvous) [[likely]]
    return receiver_->on_message(header, payload);
  const bool is_for_this = header.key == name_ && payload.rendezvous == nullptr;
  if (is_for_this && receive(header.as<RendezvousHeader>(), payload)) return;
  if (payload.rendezvous != nullptr) network_->refuse(payload.rendezvous, Status());
  receiver_->on_refused("a message about rails that belongs to no long message of this process");
}

// Returns whether the message is valid. False: no transport of ours sends such a message.
bool RailTransport::receive(const RendezvousHeader& header, const Payload& payload) noexcept {
  switch (header.kind) {
    case MessageKind::kRts:
      return receive_rts(header.number, payload);
    case MessageKind::kCts:
      return payload.num_bytes == 0 && receive_cts(header.number, header.ticket);
    case MessageKind::kNack:
      return receive_nack(header.number, payload);
    default:
      return payload.num_bytes == 0 && receive_ack(header.number);
  }
}

bool RailTransport::receive_rts(uint64_t number, const Payload& payload) noexcept {
  LongMessage rts;
  if (payload.num_bytes != sizeof rts) return false;
  std::memcpy(&rts, payload.bytes, sizeof rts);
  if (!has_rails()) return false;
  const bool is_of_rails = family_of(rts.header.kind) == MessageFamily::kRendezvous;
  if (rts.num_bytes == 0 || !is_stripe_length(rts.stripe_num_bytes) || is_of_rails) return false;
  auto& message = *new (pool_.allocate(sizeof(Incoming))) Incoming(number, rts);
  held_.push_back(message);
  receiver_->on_message(rts.header, {.num_bytes = message.num_bytes, .rendezvous = Handle::of(message)});
  return true;
}

std::optional<Status> RailTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  Incoming* const message = Handle::find(rendezvous);
  if (message == nullptr) return network_->fetch(rendezvous, into, completion);
  const std::optional<PeerId> peer = peer_named(message->sender);
  if (!peer || into.num_bytes != message->num_bytes || into.kind != MemoryKind::kHost) {
    Status why =
        peer ? Status(ErrorCode::kInternal, "the length or kind of the memory to fetch into differs from the message's")
             : peer_gone();
    refuse(rendezvous, why);
    return why;
  }
  message->peer = *peer;
  message->completion = &completion;
  message->ticket = tickets_.add(*message);
  message->unlink();
  peers_[*peer].fetched.push_back(*message);
  threads_->incoming().expect(message->ticket,
                              {.into = into, .sender = message->sender, .stripe_num_bytes = message->stripe_num_bytes});
  answer(peers_[*peer],
         {.key = message->sender, .kind = MessageKind::kCts, .number = message->number, .ticket = message->ticket});
  return std::nullopt;
}

void RailTransport::on_arrived(uint64_t ticket) noexcept {
  Incoming* const message = tickets_.find(ticket);
  if (message == nullptr) return;
  Completion& completion = *message->completion;
  Peer& peer = peers_[message->peer];
  const uint64_t number = message->number;
  release(*message);
  answer(peer, {.key = peer.name, .kind = MessageKind::kAck, .number = number});
  completion.done(completion, Status());
}

void RailTransport::answer(Peer& peer, const RendezvousHeader& header) noexcept {
  if (auto sent = network_->send(peer.id, header, {}, peer)) peer.done(peer, std::move(*sent));
}

// A sender that was never added as a peer, or is gone, cannot be notified.
void RailTransport::refuse(void* rendezvous, const Status& why) noexcept {
  Incoming* const message = Handle::find(rendezvous);
  if (message == nullptr) return network_->refuse(rendezvous, why);
  if (const auto peer = peer_named(message->sender)) send_nack(peers_[*peer], message->number, why);
  release(*message);
}

void RailTransport::send_nack(Peer& peer, uint64_t number, const Status& why) noexcept {
  auto& nack = *new (pool_.allocate(sizeof(Nack))) Nack(*this, peer, why);
  nacks_.push_back(nack);
  const auto text = nack.reason.bytes();
  const RendezvousHeader header{.key = peer.name, .kind = MessageKind::kNack, .number = number};
  auto sent = network_->send(peer.id, header, {.data = text.data(), .num_bytes = text.size()}, nack);
  if (sent) nack.done(nack, std::move(*sent));
}

void RailTransport::release(Nack& nack) noexcept {
  nack.unlink();
  nack.~Nack();
  pool_.release(&nack, sizeof nack);
}

void RailTransport::release(Incoming& message) noexcept {
  if (message.completion != nullptr) {
    if (threads_ != nullptr) threads_->incoming().cancel(message.ticket);
    tickets_.remove(message.ticket);
  }
  message.unlink();
  message.~Incoming();
  pool_.release(&message, sizeof message);
}

}  // namespace axon::transport
