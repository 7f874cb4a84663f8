#include "messaging/exchange.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <utility>

namespace axon::messaging {

// The fingerprints of collectives have been compared already (Inbox::differing), except for the sizes of an all_to_all.
// For point to point, type and length are compared here.
static bool fits(const Request& receive, const transport::OperationHeader& header,
                 const transport::Payload& payload) noexcept {
  return payload.num_bytes == receive.buffer.num_bytes && header.fingerprint == receive.header.fingerprint;
}

static Status misfit(const Request& receive, const transport::OperationHeader& header,
                     const transport::Payload& payload) {
  const transport::Fingerprint& ours = receive.header.fingerprint;
  const std::string name = name_of(ours.operation);
  const auto side = [](uint32_t rank, size_t num_bytes, DataType dtype) {
    return "rank " + std::to_string(rank) + " has " + std::to_string(num_bytes / size_of(dtype)) + " elements of " +
           name_of(dtype) + " (" + std::to_string(num_bytes) + " bytes)";
  };
  const auto mismatch = [&](const std::string& sender, const std::string& receiver) {
    return Status(ErrorCode::kMismatch, "mismatched " + name + ", slot or tag " + std::to_string(header.slot) +
                                            ": the sender, " + sender + "; the receiver, " + receiver);
  };
  const bool is_of_way_back =
      ours.operation == transport::OperationKind::kAllToAll && header.fingerprint.num_elements != ours.num_elements;
  const auto num_bytes_of = [](const transport::OperationHeader& each) {
    return each.fingerprint.num_elements * size_of(each.fingerprint.dtype);
  };
  if (is_of_way_back) {
    return mismatch(side(header.destination, num_bytes_of(receive.header), ours.dtype),
                    side(header.source, num_bytes_of(header), header.fingerprint.dtype));
  }
  return mismatch(side(header.source, payload.num_bytes, header.fingerprint.dtype),
                  side(header.destination, receive.buffer.num_bytes, ours.dtype));
}

Exchange::Exchange(Messenger& messenger, Inbox& inbox, uint32_t sequence, const transport::Fingerprint& fingerprint)
    : messenger_(messenger), inbox_(inbox), sequence_(sequence), fingerprint_(fingerprint) {}

// The transport still has requests whose transfers go on (a peer died over shared memory). They must not refer to this
// exchange any more, and neither they nor the scratch memory that they may access can be reused.
Exchange::~Exchange() {
  for (size_t i = 0; i < num_scratches_; ++i) {
    at_rest() ? messenger_.scratch_pool().give_back(scratches_[i]) : messenger_.scratch_pool().give_up(scratches_[i]);
  }
  for (Request* request = live_.front(); request != nullptr; request = live_.front()) {
    static_cast<ExchangeNode*>(request)->unlink();
    request->exchange = nullptr;
    messenger_.adopt(*request);
  }
}

Buffer Exchange::scratch(size_t num_bytes) {
  assert(num_scratches_ < kMostScratches);
  return *std::construct_at(&scratches_[num_scratches_++], messenger_.scratch_pool().take(num_bytes));
}

void Exchange::release_scratch(Buffer scratch) noexcept {
  const auto end = scratches_.begin() + num_scratches_;
  const auto taken = std::find_if(scratches_.begin(), end, [&](Buffer each) { return each.data == scratch.data; });
  *taken = scratches_[--num_scratches_];
  messenger_.scratch_pool().give_back(scratch);
}

void Exchange::fail(Status reason) noexcept {
  if (!failure_.ok()) return;
  failure_ = std::move(reason);
  if (awaits_number_ != nullptr) messenger_.schedule(*std::exchange(awaits_number_, nullptr));
  for (Request* request = live_.front(); request != nullptr;) {
    Request* next = live_.next(*request);
    abandon(*request);
    request = next;
  }
}

// No batch waits for this request any more; if the transport has it, its transfer goes on.
void Exchange::abandon(Request& request) noexcept {
  Batch* const batch = std::exchange(request.batch, nullptr);
  if (batch == nullptr) return;  // given up before
  batch->one_less();
  switch (request.state) {
    case Request::State::kPosted:
    case Request::State::kQueued:
      static_cast<InboxNode&>(request).unlink();
      release(request);
      break;
    case Request::State::kRtsSent:  // the credit is regained now, since the inbox may be gone later
      inbox_.flow().regain(request.header.destination);
      break;
    case Request::State::kMoving:
      break;
  }
}

void Exchange::set_number(uint32_t number) noexcept {
  if (message_number_) return;
  message_number_ = number;
  if (awaits_number_ != nullptr) messenger_.schedule(*std::exchange(awaits_number_, nullptr));
}

Exchange::Numbered::~Numbered() {
  unlink();
  if (exchange_.awaits_number_ == this) exchange_.awaits_number_ = nullptr;
}

void Exchange::refuse_later_parts() noexcept {
  if (message_number_) inbox_.refuse_later_parts(static_cast<uint32_t>(matched_source_), *message_number_);
}

std::vector<int> Exchange::ranks_awaited() {
  std::set<int> ranks;
  for_each_awaited([&](int rank) { ranks.insert(rank); });
  return {ranks.begin(), ranks.end()};
}

std::vector<int> Exchange::ranks_short_of_credit() {
  std::set<int> ranks;
  for (Request* request = live_.front(); request != nullptr; request = live_.next(*request)) {
    const bool lacks_credit =
        request->state == Request::State::kRtsSent && inbox_.flow().is_short_of_credit(request->buffer.num_bytes);
    if (lacks_credit || request->state == Request::State::kQueued) {
      ranks.insert(static_cast<int>(request->header.destination));
    }
  }
  return {ranks.begin(), ranks.end()};
}

// The search begins at the next rank, which is watched in any case.
std::vector<int> Exchange::some_awaited() {
  std::vector<int> ranks;
  if (live_.find([](const Request& request) { return request.peer == kNoPeer; }) == nullptr) return ranks;
  size_t num_silent = 0;
  for (int distance = 1; distance < size() && ranks.size() <= num_silent; ++distance) {
    const int other = (rank() + distance) % size();
    if (is_silent(other)) {
      ++num_silent;
    } else {
      ranks.push_back(other);
    }
  }
  return ranks;
}

bool Exchange::awaits(transport::PeerId peer) noexcept {
  return live_.find([&](const Request& request) {
    return request.peer == peer || (request.peer == kNoPeer && are_others_silent());
  }) != nullptr;
}

Request& Exchange::make_request(Batch& batch, transport::PeerId peer, const Message& message, Buffer buffer) noexcept {
  auto* request = new (size_class_pool().allocate(sizeof(Request))) Request;
  request->done = &Exchange::on_done;
  request->exchange = this;
  request->batch = &batch;
  request->peer = peer;
  request->buffer = buffer;
  request->header.sequence = sequence_;
  request->header.slot = message.slot;
  request->header.fingerprint = fingerprint_;
  if (fingerprint_.operation == transport::OperationKind::kAllToAll)
    request->header.fingerprint.num_elements = message.num_back;
  if (message.part != 0) {
    request->header.fingerprint.root = static_cast<int32_t>(message.part);
    request->header.fingerprint.num_elements = message.number;
  }
  live_.push_back(*request);
  return *request;
}

void Exchange::send(Batch& batch, Message message, ConstBuffer buffer) noexcept {
  const transport::PeerId peer = inbox_.team().peers[message.peer];
  Request& request =
      make_request(batch, peer, message, {const_cast<std::byte*>(buffer.data), buffer.num_bytes, buffer.kind});
  request.header.key = inbox_.team().keys[message.peer];
  request.header.source = static_cast<uint32_t>(rank());
  request.header.destination = static_cast<uint32_t>(message.peer);
  if (messenger_.is_lost(peer)) return finish(request, loss_of(message.peer));
  if (const Status& departure = inbox_.departure_of(message.peer); !departure.ok()) {
    return finish(request, departure.clone());
  }
  if (inbox_.flow().may_send(request.header.destination)) [[likely]]
    return transmit(request);
  request.state = Request::State::kQueued;
  inbox_.flow().enqueue(request);
}

// Messages between two ranks are numbered when they are sent: those that are never sent leave no gap.
void Exchange::transmit(Request& send) noexcept {
  const uint32_t destination = send.header.destination;
  if (fingerprint_.operation == transport::OperationKind::kPointToPoint) {
    send.header.sequence = inbox_.next_point_to_point(destination);
    set_number(send.header.sequence);
  }
  ++num_moving_;
  const bool is_eager = inbox_.flow().take(destination, send.buffer.num_bytes) == FlowControl::Protocol::kEager;
  send.state = is_eager ? Request::State::kMoving : Request::State::kRtsSent;
  transport::Transport& transport = messenger_.transport();
  const auto sent = is_eager ? transport.send(send.peer, send.header, send.buffer, send)
                             : transport.send_rendezvous(send.peer, send.header, send.buffer, send);
  if (sent) on_moved(send, *sent);
}

void Exchange::receive(Batch& batch, Message message, Buffer buffer) noexcept {
  const bool from_anyone = message.peer == kAnyRank;
  const transport::PeerId peer = from_anyone ? kNoPeer : inbox_.team().peers[message.peer];
  Request& request = make_request(batch, peer, message, buffer);
  request.header.source = from_anyone ? kAnySource : static_cast<uint32_t>(message.peer);
  request.header.destination = static_cast<uint32_t>(rank());
  request.state = Request::State::kPosted;
  if (!inbox_.post(request)) return;
  if (Status hopelessness = hopelessness_of(request); !hopelessness.ok()) {
    static_cast<InboxNode&>(request).unlink();
    finish(request, std::move(hopelessness));
  }
}

Status Exchange::loss_of(int rank) const {
  const std::string& why = messenger_.loss_of(inbox_.team().peers[static_cast<size_t>(rank)]);
  return {ErrorCode::kPeerLost, "rank " + std::to_string(rank) + " is gone: " + why};
}

Status Exchange::hopelessness_of(const Request& receive) const {
  if (receive.header.source == kAnySource) {
    return are_others_silent() ? Status(ErrorCode::kPeerLost, "all other ranks are gone") : Status();
  }
  const int source = static_cast<int>(receive.header.source);
  if (messenger_.is_lost(receive.peer)) return loss_of(source);
  return is_silent(source) ? inbox_.departure_of(source).clone() : Status();
}

void Exchange::deliver(Request& receive, const transport::OperationHeader& header,
                       const transport::Payload& payload) noexcept {
  matched_source_ = static_cast<int>(header.source);
  set_number(header.sequence);
  if (!fits(receive, header, payload)) {
    Status why = misfit(receive, header, payload);
    drop_payload(messenger_, payload, why);
    finish(receive, std::move(why));
    return;
  }
  if (payload.rendezvous != nullptr && messenger_.is_lost(inbox_.team().peers[header.source])) {
    messenger_.transport().refuse(payload.rendezvous, Status());  // the payload at its sender is gone with the sender
    finish(receive, loss_of(static_cast<int>(header.source)));
    return;
  }
  if (payload.rendezvous == nullptr) {
    if (payload.num_bytes != 0) std::memcpy(receive.buffer.data, payload.bytes, payload.num_bytes);
    finish(receive);
    return;
  }
  receive.state = Request::State::kMoving;
  receive.peer = inbox_.team().peers[header.source];
  ++num_moving_;
  if (const auto fetched = messenger_.transport().fetch(payload.rendezvous, receive.buffer, receive)) {
    on_moved(receive, *fetched);
  }
}

bool Exchange::are_others_silent() const noexcept {
  const Team& team = inbox_.team();
  if (team.size() == 1) return false;  // it may still send to itself
  for (int other = 0; other < team.size(); ++other) {
    if (other != team.rank && !is_silent(other)) return false;
  }
  return true;
}

// Returns whether no more messages come from the rank. For collectives, only a lost peer counts: if a rank leaves, the
// group's failure notice ends them.
bool Exchange::is_silent(int rank) const noexcept {
  const bool is_point_to_point = fingerprint_.operation == transport::OperationKind::kPointToPoint;
  return messenger_.is_lost(inbox_.team().peers[static_cast<size_t>(rank)]) ||
         (is_point_to_point && inbox_.is_spent(rank));
}

// A transport may notice that a process has ended before the engine does. A receiver that refuses a message
// (transport/nack.hpp) is reachable; the text of a mismatch already names both ranks.
Status Exchange::unreachable(transport::PeerId peer, const Status& why) const {
  if (why.code() == ErrorCode::kMismatch) return why.clone();
  const std::vector<transport::PeerId>& peers = inbox_.team().peers;
  const auto rank = std::find(peers.begin(), peers.end(), peer) - peers.begin();
  const char* const what = why.code() == ErrorCode::kAborted ? " has refused a message: " : " cannot be reached: ";
  return {why.code(), "rank " + std::to_string(rank) + what + why.message()};
}

void Exchange::on_done(transport::Completion& completion, Status status) noexcept {
  auto& request = static_cast<Request&>(completion);
  if (request.exchange != nullptr) request.exchange->on_moved(request, status);
}

// Called when the transport has completed the request.
void Exchange::on_moved(Request& request, const Status& status) noexcept {
  --num_moving_;
  if (request.state == Request::State::kRtsSent && request.batch != nullptr) {
    inbox_.flow().regain(request.header.destination);
  }
  // If its operation has given up on it, the failure is ignored: the group that knows its ranks may be gone.
  if (status.ok() || request.batch == nullptr) return finish(request);
  finish(request, unreachable(request.peer, status));
}

void Exchange::finish(Request& request) noexcept {
  Batch* const batch = request.batch;
  release(request);
  if (batch != nullptr) batch->one_less();
}

// A request that fails fails its operation.
void Exchange::finish(Request& request, Status failure) noexcept {
  Batch* const batch = std::exchange(request.batch, nullptr);
  release(request);
  if (batch == nullptr) return;
  fail(std::move(failure));
  batch->one_less();
}

void Exchange::release(Request& request) noexcept {
  static_cast<ExchangeNode&>(request).unlink();
  request.~Request();
  size_class_pool().release(&request, sizeof(Request));
}

// The coroutine may be destroyed while it is suspended here, or is about to be resumed: it must not be resumed any
// more.
Batch::~Batch() {
  set_waiter(nullptr);
  unlink();
  if (num_outstanding_ == 0) return;
  for (Request* request = exchange_.live_.front(); request != nullptr;) {
    Request* next = exchange_.live_.next(*request);
    if (request->batch == this) exchange_.abandon(*request);
    request = next;
  }
}

void Batch::send(Message message, ConstBuffer buffer) noexcept {
  if (!exchange_.failure_.ok()) return;
  ++num_outstanding_;
  exchange_.send(*this, in_group(message), buffer);
}

void Batch::receive(Message message, Buffer buffer) noexcept {
  if (!exchange_.failure_.ok()) return;
  ++num_outstanding_;
  exchange_.receive(*this, in_group(message), buffer);
}

void Batch::one_less() noexcept {
  if (--num_outstanding_ == 0 && has_waiter()) exchange_.messenger_.schedule(*this);
}

}  // namespace axon::messaging
