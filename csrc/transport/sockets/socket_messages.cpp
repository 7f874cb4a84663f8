// Messages of SocketTransport, in both directions: whole ones, and RTS, CTS, NACK and DATA of long ones.
#include <cstring>
#include <new>
#include <utility>

#include "transport/sockets/socket_link.hpp"

namespace axon::transport {

// ---- Sending

std::optional<Status> SocketTransport::send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                            Completion& completion) noexcept {
  if (payload.num_bytes > kLargestEager) return send_rendezvous(peer, header, payload, completion);
  Link& link = *peers_[peer];
  if (!link.loss.ok()) return link.loss.clone();
  if (is_self(link)) {
    receiver_->on_message(header, {.bytes = payload.data, .num_bytes = payload.num_bytes});
    return Status();
  }
  if (link.connections.empty()) [[unlikely]]
    AXON_TRY(connect(link));
  const FrameHeader frame{
      .num_bytes = static_cast<uint32_t>(payload.num_bytes), .kind = FrameKind::kMessage, .message = header};
  Writing writing{.header = frame, .payload = payload};
  if (Connection* const rail = idle_rail_of(link)) {
    const ssize_t num_sent = write_some(*rail, {&writing, 1});
    if (num_sent == static_cast<ssize_t>(writing.num_bytes())) return Status();
    Outgoing& message = enqueue(link, frame, payload, &completion);
    if (num_sent <= 0) return std::nullopt;
    writing.message = &message;
    writing.num_sent = static_cast<size_t>(num_sent);
    on_begun(writing);
    rail->writing = writing;
    return std::nullopt;
  }
  enqueue(link, frame, payload, &completion);
  return std::nullopt;
}

std::optional<Status> SocketTransport::send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                                       Completion& completion) noexcept {
  Link& link = *peers_[peer];
  if (!link.loss.ok()) return link.loss.clone();
  if (is_self(link)) return send_to_self(link, header, payload, completion);
  if (link.connections.empty()) [[unlikely]]
    AXON_TRY(connect(link));
  FrameHeader frame{.kind = FrameKind::kRts, .position = payload.num_bytes, .message = header};
  enqueue(link, frame, payload, &completion);
  if (!link.connections.empty()) (void)write(*link.connections.front());
  return std::nullopt;
}

std::optional<Status> SocketTransport::send_to_self(Link& link, const MessageHeader& header, ConstBuffer payload,
                                                    Completion& completion) noexcept {
  const FrameHeader frame{.kind = FrameKind::kRts, .position = payload.num_bytes, .message = header};
  Outgoing& message = enqueue(link, frame, payload, &completion);
  receive_rts(link, message.header, &message);
  return std::nullopt;
}

// A long message gets its number here.
SocketTransport::Outgoing& SocketTransport::enqueue(Link& link, const FrameHeader& header, ConstBuffer payload,
                                                    Completion* completion) noexcept {
  auto& message = *new (pool_.allocate(sizeof(Outgoing))) Outgoing(link, header, payload, completion);
  if (header.kind == FrameKind::kRts) message.header.number = numbers_.add(message);
  link.queue.push_back(message);
  if (!is_self(link)) schedule(link);
  return message;
}

void SocketTransport::release(Outgoing& message) noexcept {
  const bool is_numbered = message.header.kind == FrameKind::kRts && !message.is_cleared;
  if (is_numbered) numbers_.remove(message.header.number);
  message.unlink();
  message.~Outgoing();
  pool_.release(&message, sizeof message);
}

// ---- Receiving

bool SocketTransport::receive(Connection& connection, const FrameHeader& header,
                              std::span<const std::byte> payload) noexcept {
  switch (header.kind) {
    case FrameKind::kMessage:
      receiver_->on_message(header.message, {.bytes = payload.data(), .num_bytes = payload.size()});
      return true;
    case FrameKind::kRts:
      receive_rts(connection.link, header, nullptr);
      return true;
    case FrameKind::kCts:
      return receive_cts(connection.link, header);
    case FrameKind::kNack:
      return receive_nack(connection.link, header, payload);
    case FrameKind::kBye:
      return receive_bye(connection);
    case FrameKind::kData:
      break;
  }
  return false;
}

void SocketTransport::receive_rts(Link& link, const FrameHeader& header, Outgoing* own) noexcept {
  auto& message = *new (pool_.allocate(sizeof(Incoming))) Incoming(link, header.number, header.position);
  message.own = own;
  link.held.push_back(message);
  receiver_->on_message(header.message, {.num_bytes = message.num_bytes, .rendezvous = &message});
}

bool SocketTransport::receive_cts(const Link& link, const FrameHeader& header) noexcept {
  Outgoing* const message = numbers_.find(header.number);
  if (message == nullptr || &message->link != &link || !message->is_announced) return false;
  numbers_.remove(header.number);
  message->is_cleared = true;
  message->ticket = header.position;
  message->unlink();
  message->link.cleared.push_back(*message);
  schedule(message->link);
  return true;
}

bool SocketTransport::receive_nack(const Link& link, const FrameHeader& header,
                                   std::span<const std::byte> payload) noexcept {
  Outgoing* const message = numbers_.find(header.number);
  if (message == nullptr || &message->link != &link || !message->is_announced) return false;
  end(*message, nack::decode(payload));
  return true;
}

// The other process writes nothing more over this rail, and reads until this one has said BYE, too.
bool SocketTransport::receive_bye(Connection& connection) noexcept {
  if (std::exchange(connection.has_heard_bye, true)) return false;
  if (connection.has_said_bye) close(connection);
  return true;
}

std::byte* SocketTransport::place_of(const Link& link, const FrameHeader& header) noexcept {
  Incoming* const message = tickets_.find(header.number);
  if (message == nullptr || &message->link != &link) return nullptr;
  const size_t most = message->num_bytes - message->num_placed;
  if (header.num_bytes > most || header.position > message->num_bytes - header.num_bytes) return nullptr;
  message->num_placed += header.num_bytes;
  return message->into.data + header.position;
}

bool SocketTransport::receive_data(const FrameHeader& header) noexcept {
  Incoming* const message = tickets_.find(header.number);
  if (message == nullptr) return false;
  message->num_received += header.num_bytes;
  if (message->num_received == message->num_bytes) end(*message, Status());
  return true;
}

// ---- Fetching and refusing

std::optional<Status> SocketTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  auto& message = *static_cast<Incoming*>(rendezvous);
  Link& link = message.link;
  if (!link.loss.ok()) {
    release(message);
    return link.loss.clone();
  }
  if (into.num_bytes != message.num_bytes || into.kind != MemoryKind::kHost) {
    Status why(ErrorCode::kInternal, "the length or kind of the memory to fetch into differs from the message's");
    refuse(rendezvous, why);
    return why;
  }
  if (message.own != nullptr) {
    std::memcpy(into.data, message.own->payload.data, into.num_bytes);
    end(*message.own, Status());
    release(message);
    return Status();
  }
  message.completion = &completion;
  message.into = into;
  message.ticket = tickets_.add(message);
  message.unlink();
  link.fetched.push_back(message);
  const FrameHeader cts{.kind = FrameKind::kCts, .number = message.number, .position = message.ticket, .message = {}};
  enqueue(link, cts, {}, nullptr);
  return std::nullopt;
}

void SocketTransport::refuse(void* rendezvous, const Status& why) noexcept {
  auto& message = *static_cast<Incoming*>(rendezvous);
  Link& link = message.link;
  const nack::Encoded reason(why);
  if (message.own != nullptr && link.loss.ok()) {
    end(*message.own, nack::decode(reason.bytes()));
  } else if (link.loss.ok()) {
    const auto num_bytes = static_cast<uint32_t>(reason.bytes().size());
    const FrameHeader header{.num_bytes = num_bytes, .kind = FrameKind::kNack, .number = message.number, .message = {}};
    Outgoing& nack = enqueue(link, header, {}, nullptr);
    nack.reason = reason;
    nack.payload = {.data = nack.reason->bytes().data(), .num_bytes = num_bytes};
  }
  release(message);
}

void SocketTransport::release(Incoming& message) noexcept {
  if (message.completion != nullptr) tickets_.remove(message.ticket);
  may_free_ |= !message.link.loss.ok();
  message.unlink();
  message.~Incoming();
  pool_.release(&message, sizeof message);
}

}  // namespace axon::transport
