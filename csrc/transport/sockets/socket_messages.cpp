#include "transport/sockets/socket_messages.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace axon::transport {

// ---- Sending

// A message from this process to itself, which no rail writes.
std::optional<Status> SocketMessages::send_to_self(SocketLink& self, const MessageHeader& header, ConstBuffer payload,
                                                   Completion& completion) noexcept {
  const FrameHeader frame{.kind = FrameKind::kRts, .position = payload.num_bytes, .message = header};
  OutgoingMessage& message = enqueue(self, frame, payload, &completion);
  receive_rts(self, message.header, &message);
  return std::nullopt;
}

// A long message gets its number here.
OutgoingMessage& SocketMessages::enqueue(SocketLink& link, const FrameHeader& header, ConstBuffer payload,
                                         Completion* completion) noexcept {
  auto& message = *new (pool_.allocate(sizeof(OutgoingMessage))) OutgoingMessage(link, header, payload, completion);
  if (header.kind == FrameKind::kRts) message.header.number = numbers_.add(message);
  link.queue.push_back(message);
  if (!link.is_self) schedule(link);
  return message;
}

void SocketMessages::schedule(SocketLink& link) noexcept {
  if (!link.linked()) scheduled_.push_back(link);
}

size_t SocketMessages::gather(SocketLink& link, std::span<FrameWriting> batch, size_t num_frames, size_t num_bytes,
                              size_t most_bytes) noexcept {
  const auto add = [&](const FrameWriting& writing) {
    num_bytes += writing.num_bytes();
    batch[num_frames++] = writing;
  };
  for (OutgoingMessage* next = link.queue.front(); next != nullptr; next = link.queue.next(*next)) {
    if (num_frames == batch.size() - 1 || num_bytes >= most_bytes) return num_frames;
    const bool is_rts = next->header.kind == FrameKind::kRts;
    add({.header = next->header, .payload = is_rts ? ConstBuffer{} : next->payload, .message = next});
  }
  OutgoingMessage* const message = link.cleared.front();
  if (message == nullptr || num_bytes >= most_bytes) return num_frames;
  const size_t num_left = message->payload.num_bytes - message->num_begun;
  const ConstBuffer part = message->payload.slice(message->num_begun, std::min(num_left, most_bytes));
  add({.header = {.num_bytes = static_cast<uint32_t>(part.num_bytes),
                  .kind = FrameKind::kData,
                  .number = message->ticket,
                  .position = message->num_begun,
                  .message = {}},
       .payload = part,
       .message = message});
  return num_frames;
}

void SocketMessages::on_begun(const FrameWriting& written) noexcept {
  if (written.message == nullptr) return;
  OutgoingMessage& message = *written.message;
  SocketLink& link = message.link;
  message.unlink();
  if (written.header.kind == FrameKind::kRts) {
    message.is_announced = true;
    return link.announced.push_back(message);
  }
  const bool is_data = written.header.kind == FrameKind::kData;
  if (is_data) message.num_begun += written.payload.num_bytes;
  const bool has_more = is_data && message.num_begun < message.payload.num_bytes;
  (has_more ? link.cleared : link.in_writing).push_back(message);
}

void SocketMessages::on_written(const FrameWriting& written) noexcept {
  if (written.header.kind == FrameKind::kRts) return;
  OutgoingMessage& message = *written.message;
  message.num_written += written.payload.num_bytes;
  if (written.header.kind == FrameKind::kData && message.num_written < message.payload.num_bytes) return;
  end(message, Status());
}

// ---- Receiving

bool SocketMessages::receive(SocketLink& link, const FrameHeader& header, std::span<const std::byte> payload) noexcept {
  switch (header.kind) {
    case FrameKind::kMessage:
      receiver_->on_message(header.message, {.bytes = payload.data(), .num_bytes = payload.size()});
      return true;
    case FrameKind::kRts:
      receive_rts(link, header, nullptr);
      return true;
    case FrameKind::kCts:
      return receive_cts(link, header);
    case FrameKind::kNack:
      return receive_nack(link, header, payload);
    case FrameKind::kData:
    case FrameKind::kBye:
      break;
  }
  return false;
}

void SocketMessages::receive_rts(SocketLink& link, const FrameHeader& header, OutgoingMessage* own) noexcept {
  auto& message = *new (pool_.allocate(sizeof(IncomingMessage))) IncomingMessage(link, header.number, header.position);
  message.own = own;
  link.held.push_back(message);
  receiver_->on_message(header.message, {.num_bytes = message.num_bytes, .rendezvous = &message});
}

bool SocketMessages::receive_cts(const SocketLink& link, const FrameHeader& header) noexcept {
  OutgoingMessage* const message = numbers_.find(header.number);
  if (message == nullptr || &message->link != &link || !message->is_announced) return false;
  numbers_.remove(header.number);
  message->is_cleared = true;
  message->ticket = header.position;
  message->unlink();
  message->link.cleared.push_back(*message);
  schedule(message->link);
  return true;
}

bool SocketMessages::receive_nack(const SocketLink& link, const FrameHeader& header,
                                  std::span<const std::byte> payload) noexcept {
  OutgoingMessage* const message = numbers_.find(header.number);
  if (message == nullptr || &message->link != &link || !message->is_announced) return false;
  end(*message, nack::decode(payload));
  return true;
}

std::byte* SocketMessages::place_of(const SocketLink& link, const FrameHeader& header) noexcept {
  IncomingMessage* const message = tickets_.find(header.number);
  if (message == nullptr || &message->link != &link) return nullptr;
  const size_t most = message->num_bytes - message->num_placed;
  if (header.num_bytes > most || header.position > message->num_bytes - header.num_bytes) return nullptr;
  message->num_placed += header.num_bytes;
  return message->into.data + header.position;
}

bool SocketMessages::receive_data(const FrameHeader& header) noexcept {
  IncomingMessage* const message = tickets_.find(header.number);
  if (message == nullptr) return false;
  message->num_received += header.num_bytes;
  if (message->num_received == message->num_bytes) end(*message, Status());
  return true;
}

// ---- Fetching and refusing

std::optional<Status> SocketMessages::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  auto& message = *static_cast<IncomingMessage*>(rendezvous);
  SocketLink& link = message.link;
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

void SocketMessages::refuse(void* rendezvous, const Status& why) noexcept {
  auto& message = *static_cast<IncomingMessage*>(rendezvous);
  SocketLink& link = message.link;
  const nack::Encoded reason(why);
  if (message.own != nullptr && link.loss.ok()) {
    end(*message.own, nack::decode(reason.bytes()));
  } else if (link.loss.ok()) {
    const auto num_bytes = static_cast<uint32_t>(reason.bytes().size());
    const FrameHeader header{.num_bytes = num_bytes, .kind = FrameKind::kNack, .number = message.number, .message = {}};
    OutgoingMessage& nack = enqueue(link, header, {}, nullptr);
    nack.reason = reason;
    nack.payload = {.data = nack.reason->bytes().data(), .num_bytes = num_bytes};
  }
  release(message);
}

// ---- Ends

void SocketMessages::end_all_of(SocketLink& link) noexcept {
  for (IntrusiveList<OutgoingMessage>* list : {&link.queue, &link.announced, &link.cleared, &link.in_writing}) {
    while (OutgoingMessage* const message = list->front()) end(*message, link.loss.clone());
  }
  while (IncomingMessage* const message = link.fetched.front()) end(*message, link.loss.clone());
}

void SocketMessages::end_queue_of(SocketLink& link, const Status& why) noexcept {
  while (OutgoingMessage* const message = link.queue.front()) end(*message, why.clone());
}

void SocketMessages::release_all_of(SocketLink& link) noexcept {
  for (IntrusiveList<OutgoingMessage>* list : {&link.queue, &link.announced, &link.cleared, &link.in_writing}) {
    while (OutgoingMessage* const message = list->front()) release(*message);
  }
  for (IntrusiveList<IncomingMessage>* list : {&link.held, &link.fetched}) {
    while (IncomingMessage* const message = list->front()) release(*message);
  }
}

void SocketMessages::end(OutgoingMessage& message, Status status) noexcept {
  if (message.completion != nullptr) ended_.push_back({message.completion, std::move(status)});
  release(message);
}

void SocketMessages::end(IncomingMessage& message, Status status) noexcept {
  ended_.push_back({message.completion, std::move(status)});
  release(message);
}

void SocketMessages::release(OutgoingMessage& message) noexcept {
  const bool is_numbered = message.header.kind == FrameKind::kRts && !message.is_cleared;
  if (is_numbered) numbers_.remove(message.header.number);
  message.unlink();
  message.~OutgoingMessage();
  pool_.release(&message, sizeof message);
}

void SocketMessages::release(IncomingMessage& message) noexcept {
  if (message.completion != nullptr) tickets_.remove(message.ticket);
  message.unlink();
  message.~IncomingMessage();
  pool_.release(&message, sizeof message);
}

// Completions may end further transfers, which the next call notifies.
unsigned SocketMessages::finish_ended() noexcept {
  if (ended_.empty()) return 0;
  std::vector<Ended> ending = std::exchange(ended_, std::exchange(spare_, {}));
  for (Ended& each : ending) each.completion->done(*each.completion, std::move(each.status));
  const auto num_ended = static_cast<unsigned>(ending.size());
  ending.clear();
  spare_ = std::move(ending);
  return num_ended;
}

}  // namespace axon::transport
