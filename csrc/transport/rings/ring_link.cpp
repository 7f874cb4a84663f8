#include "transport/rings/ring_link.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.hpp"

namespace axon {

// Read at one go; then others have their turn.
static constexpr size_t kChunk = size_t{1} << 20;
// Several of them are in the ring at once: one is written while another one is read.
static constexpr size_t kPiece = size_t{16} << 10;
// Of what is sent before the other process has mapped our ring so much is copied, so that its sender need not wait.
static constexpr size_t kMostCopied = size_t{64} << 10;

struct RingLink::Waiting : ListNode<Waiting> {
  RingHead::Kind kind;
  MessageHeader header;
  ConstBuffer payload;
  RemoteBytes offered;               // of an offer, whose payload this is
  Completion* completion = nullptr;  // of a message that has not been copied
  size_t num_copied = 0;             // bytes, behind this

  std::byte* copy() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
};

class RingLink::Arrival : public ListNode<Arrival> {
 public:
  Arrival(RingLink& from, const RemoteBytes& there) noexcept : link(from), remote(there) {}

  RingLink& link;
  const RemoteBytes remote;
  Buffer into;
  Completion* completion = nullptr;
  size_t num_here = 0;
};

static MessageHeader header_of(uint64_t number) noexcept {
  MessageHeader header;
  header.key = number;
  return header;
}

static Status lost() {
  return {ErrorCode::kPeerLost, "its process is gone, or has been given up"};
}

RingLink::~RingLink() {
  while (Waiting* waiting = queue_.front()) release(*waiting);
  for (IntrusiveList<Arrival>* list : {&held_, &fetching_, &pulling_}) {
    while (Arrival* arrival = list->front()) release(*arrival);
  }
}

// ---- Sending

void RingLink::connect() noexcept {
  if (state_ != State::kNew) return;
  state_ = State::kNetwork;
  const auto do_without = [](const Status& why) { log::info("no ring to a process of this host: " + why.message()); };
  if (!bell_) {
    Result<BellPull> bell = BellPull::open(address_);
    if (!bell.ok()) return do_without(bell.status());
    bell_.emplace(std::move(bell).value());
  }
  Result<RingWriter> made = RingWriter::make();
  if (!made.ok()) return do_without(made.status());
  writer_.emplace(std::move(made).value());
  state_ = call(RingCall::Kind::kOffer, writer_->descriptor()) ? State::kCalled : State::kNew;
}

bool RingLink::call(RingCall::Kind kind, int descriptor) noexcept {
  return bell_->call({.key = address_.key, .caller = shared_.own, .kind = kind, .descriptor = descriptor});
}

// Where the bell was full it is rung again.
void RingLink::look_for_answer() noexcept {
  if (writer_->is_read()) {
    state_ = State::kOpen;
  } else if (bell_->has_refused(shared_.own.key)) {
    state_ = State::kNetwork;
    writer_.reset();
  }
}

// Whether there was room. Behind what waits there is none.
bool RingLink::write(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept {
  switch (writer_->write(kind, header, payload)) {
    case RingWriter::Outcome::kFull:
      return false;
    case RingWriter::Outcome::kWrittenToSleeper:
      call(RingCall::Kind::kWake, -1);
      break;
    case RingWriter::Outcome::kWritten:
      break;
  }
  return true;
}

RingLink::Waiting& RingLink::enqueue(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload,
                                     size_t num_copied) noexcept {
  auto* waiting = new (shared_.pool.allocate(sizeof(Waiting) + num_copied)) Waiting;
  waiting->kind = kind;
  waiting->header = header;
  waiting->payload = payload;
  waiting->num_copied = num_copied;
  num_copied_ += num_copied;
  queue_.push_back(*waiting);
  return *waiting;
}

void RingLink::release(Waiting& waiting) noexcept {
  waiting.unlink();
  num_copied_ -= waiting.num_copied;
  shared_.pool.release(&waiting, sizeof waiting + waiting.num_copied);
}

std::optional<Status> RingLink::send(const MessageHeader& header, ConstBuffer payload,
                                     Completion& completion) noexcept {
  if (payload.num_bytes > RingMemory::kMostBytes) return offer(header, payload, completion);
  if (state_ == State::kOpen && queue_.empty() && write(RingHead::Kind::kMessage, header, payload)) return Status();
  if (state_ != State::kOpen && num_copied_ + payload.num_bytes <= kMostCopied) {
    Waiting& waiting = enqueue(RingHead::Kind::kMessage, header, payload, payload.num_bytes);
    if (payload.num_bytes != 0) std::memcpy(waiting.copy(), payload.data, payload.num_bytes);
    waiting.payload.data = waiting.copy();
    return Status();
  }
  enqueue(RingHead::Kind::kMessage, header, payload).completion = &completion;
  return std::nullopt;
}

std::optional<Status> RingLink::offer(const MessageHeader& header, ConstBuffer payload,
                                      Completion& completion) noexcept {
  const RemoteBytes remote{.address = reinterpret_cast<uint64_t>(payload.data),
                           .num_bytes = payload.num_bytes,
                           .number = keep(payload, completion)};
  const auto bytes = std::as_bytes(std::span(&remote, 1));
  const ConstBuffer announced{.data = bytes.data(), .num_bytes = bytes.size()};
  if (state_ != State::kOpen || !queue_.empty() || !write(RingHead::Kind::kOffer, header, announced)) {
    Waiting& waiting = enqueue(RingHead::Kind::kOffer, header, {});
    waiting.offered = remote;
    waiting.payload = {.data = reinterpret_cast<const std::byte*>(&waiting.offered), .num_bytes = sizeof remote};
  }
  return std::nullopt;
}

void RingLink::answer(RingHead::Kind kind, uint64_t number) noexcept {
  if (state_ == State::kLost) return;
  connect();
  const MessageHeader header = header_of(number);
  if (state_ != State::kOpen || !queue_.empty() || !write(kind, header, {})) enqueue(kind, header, {});
}

unsigned RingLink::write_waiting() noexcept {
  unsigned num_written = 0;
  for (Waiting* first = queue_.front(); first != nullptr && state_ == State::kOpen; first = queue_.front()) {
    if (!write(first->kind, first->header, first->payload)) break;
    ++num_written;
    Completion* const completion = first->completion;
    release(*first);
    if (completion != nullptr) completion->done(*completion, Status());
  }
  return num_written;
}

namespace {

// A copied payload on its way through the network.
struct CopyInFlight : Completion {
  BlockPool* pool;
  size_t num_bytes;

  std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  static void release(Completion& completion, Status) noexcept {
    auto& copy = static_cast<CopyInFlight&>(completion);
    copy.pool->release(&copy, sizeof copy + copy.num_bytes);
  }
};

}  // namespace

void RingLink::hand_over_copy(Transport& network, PeerId peer, Waiting& waiting) noexcept {
  auto* copy = new (shared_.pool.allocate(sizeof(CopyInFlight) + waiting.num_copied)) CopyInFlight;
  copy->done = &CopyInFlight::release;
  copy->pool = &shared_.pool;
  copy->num_bytes = waiting.num_copied;
  std::memcpy(copy->bytes(), waiting.copy(), waiting.num_copied);
  const ConstBuffer payload{.data = copy->bytes(), .num_bytes = waiting.num_copied};
  if (auto sent = network.send(peer, waiting.header, payload, *copy)) copy->done(*copy, std::move(*sent));
}

void RingLink::hand_over(Transport& network, PeerId peer) noexcept {
  while (Waiting* first = queue_.front()) {
    Completion* completion = first->completion;
    std::optional<Status> sent;
    if (first->num_copied != 0) {
      hand_over_copy(network, peer, *first);
    } else if (first->kind == RingHead::Kind::kMessage) {
      if (completion == nullptr) completion = &unattended;
      sent = network.send(peer, first->header, first->payload, *completion);
    } else if (Kept* kept = first->kind == RingHead::Kind::kOffer ? find(first->offered.number) : nullptr) {
      const ConstBuffer payload = kept->payload;
      completion = &let_go(*kept);
      sent = network.offer(peer, first->header, payload, *completion);
    }
    release(*first);
    if (sent) completion->done(*completion, std::move(*sent));
  }
}

// ---- What is offered

uint64_t RingLink::keep(ConstBuffer payload, Completion& completion) noexcept {
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<uint32_t>(kept_.size()));
    kept_.emplace_back();
  }
  const uint32_t place = free_places_.back();
  free_places_.pop_back();
  Kept& kept = kept_[place];
  kept = {.payload = payload, .completion = &completion, .num_uses = kept.num_uses + 1};
  ++num_kept_;
  return uint64_t{kept.num_uses} << 32 | place;
}

RingLink::Kept* RingLink::find(uint64_t number) noexcept {
  const auto place = static_cast<uint32_t>(number);
  if (place >= kept_.size()) return nullptr;
  Kept& kept = kept_[place];
  return kept.completion != nullptr && kept.num_uses == number >> 32 ? &kept : nullptr;
}

Completion& RingLink::let_go(Kept& kept) noexcept {
  if (kept.is_pulled) --num_pulled_;
  --num_kept_;
  free_places_.push_back(static_cast<uint32_t>(&kept - kept_.data()));
  return *std::exchange(kept.completion, nullptr);
}

// One of each that is asked for, as long as there is room.
unsigned RingLink::push_pieces() noexcept {
  unsigned num_written = 0;
  for (uint32_t place = 0; place < kept_.size() && num_pulled_ != 0; ++place) {
    Kept& kept = kept_[place];
    if (kept.completion == nullptr || !kept.is_pulled) continue;
    const size_t length = std::min(kPiece, kept.payload.num_bytes - kept.num_sent);
    const MessageHeader header = header_of(uint64_t{kept.num_uses} << 32 | place);
    if (!write(RingHead::Kind::kPiece, header, kept.payload.slice(kept.num_sent, length))) break;
    ++num_written;
    kept.num_sent += length;
    kept.is_pulled = kept.num_sent != kept.payload.num_bytes;
    if (!kept.is_pulled) --num_pulled_;
  }
  return num_written;
}

// ---- Receiving

Status RingLink::open(int descriptor) noexcept {
  Result<BellPull> bell = bell_ ? Result<BellPull>(std::move(*bell_)) : BellPull::open(address_);
  if (!bell.ok()) return std::move(bell.status());
  bell_.emplace(std::move(bell).value());
  Result<RingReader> ring = RingReader::open(address_.pid, descriptor);
  if (!ring.ok()) return std::move(ring.status());
  reader_.emplace(std::move(ring).value());
  return Status();
}

unsigned RingLink::read(unsigned most) noexcept {
  if (!reader_) return 0;
  const auto deliver = [this](RingHead::Kind kind, const MessageHeader& header, const Payload& payload) {
    if (!is_broken_) is_broken_ = !receive(kind, header, payload);
  };
  const unsigned num_read = reader_->read(most, deliver);
  is_broken_ |= reader_->is_broken();
  return num_read;
}

// False: no process of ours writes that.
bool RingLink::receive(RingHead::Kind kind, const MessageHeader& header, const Payload& payload) noexcept {
  if (kind == RingHead::Kind::kMessage) [[likely]] {
    shared_.receiver->on_message(header, payload);
    return true;
  }
  if (kind == RingHead::Kind::kOffer) return receive_offer(header, payload);
  if (kind == RingHead::Kind::kPiece) return receive_piece(header.key, payload);
  Kept* const kept = find(header.key);
  if (kept == nullptr || payload.num_bytes != 0) return false;
  if (kind == RingHead::Kind::kPull) {
    if (kept->is_pulled || kept->num_sent != 0) return false;
    kept->is_pulled = true;
    ++num_pulled_;
    return true;
  }
  Completion& completion = let_go(*kept);
  const bool is_refused = kind == RingHead::Kind::kRefused;
  completion.done(completion, is_refused ? Status(ErrorCode::kTransport, "its receiver has refused it") : Status());
  return true;
}

bool RingLink::receive_offer(const MessageHeader& header, const Payload& payload) noexcept {
  RemoteBytes remote;
  if (payload.num_bytes != sizeof remote) return false;
  std::memcpy(&remote, payload.bytes, sizeof remote);
  if (remote.num_bytes == 0) return false;
  auto* arrival = new (shared_.pool.allocate(sizeof(Arrival))) Arrival(*this, remote);
  held_.push_back(*arrival);
  void* const rendezvous = reinterpret_cast<std::byte*>(arrival) + 1;
  shared_.receiver->on_message(header, {.num_bytes = remote.num_bytes, .rendezvous = rendezvous});
  return true;
}

// Whatever the network has for one lies at an even address.
RingLink::Arrival* RingLink::arrival_of(void* rendezvous) noexcept {
  if (reinterpret_cast<uintptr_t>(rendezvous) % 2 == 0) return nullptr;
  return reinterpret_cast<Arrival*>(static_cast<std::byte*>(rendezvous) - 1);
}

void RingLink::release(Arrival& arrival) noexcept {
  arrival.unlink();
  shared_.pool.release(&arrival, sizeof arrival);
}

void RingLink::refuse(Arrival& arrival) noexcept {
  RingLink& link = arrival.link;
  link.answer(RingHead::Kind::kRefused, arrival.remote.number);
  link.release(arrival);
}

std::optional<Status> RingLink::fetch(Arrival& arrival, Buffer into, Completion& completion) noexcept {
  RingLink& link = arrival.link;
  arrival.into = into;
  arrival.completion = &completion;
  arrival.unlink();
  link.fetching_.push_back(arrival);
  return link.read_chunk(arrival);
}

// What cannot be read here has to come through the ring.
std::optional<Status> RingLink::read_chunk(Arrival& arrival) noexcept {
  if (state_ == State::kLost) {
    release(arrival);
    return lost();
  }
  const size_t length = std::min(kChunk, arrival.into.num_bytes - arrival.num_here);
  const ReadOutcome outcome = reads_memory_ && shared_.reads_processes
                                  ? read_process(address_, arrival.remote.address + arrival.num_here,
                                                 arrival.into.data + arrival.num_here, length)
                                  : ReadOutcome::kForbidden;
  switch (outcome) {
    case ReadOutcome::kRead:
      arrival.num_here += length;
      if (arrival.num_here != arrival.into.num_bytes) return std::nullopt;
      answer(RingHead::Kind::kFetched, arrival.remote.number);
      release(arrival);
      return Status();
    case ReadOutcome::kForbidden:
      reads_memory_ = false;
      [[fallthrough]];
    case ReadOutcome::kUnreadable:
      arrival.num_here = 0;
      arrival.unlink();
      pulling_.push_back(arrival);
      answer(RingHead::Kind::kPull, arrival.remote.number);
      return std::nullopt;
    case ReadOutcome::kGone:
      break;
  }
  release(arrival);
  return lost();
}

// The one that has waited longest.
unsigned RingLink::fetch_more() noexcept {
  Arrival* const arrival = fetching_.pop_front();
  if (arrival == nullptr) return 0;
  fetching_.push_back(*arrival);
  Completion& completion = *arrival->completion;
  if (auto fetched = read_chunk(*arrival)) completion.done(completion, std::move(*fetched));
  return 1;
}

bool RingLink::receive_piece(uint64_t number, const Payload& payload) noexcept {
  Arrival* const arrival = pulling_.find([&](const Arrival& each) { return each.remote.number == number; });
  if (arrival == nullptr) return false;
  if (payload.num_bytes == 0 || payload.num_bytes > arrival->into.num_bytes - arrival->num_here) return false;
  std::memcpy(arrival->into.data + arrival->num_here, payload.bytes, payload.num_bytes);
  arrival->num_here += payload.num_bytes;
  if (arrival->num_here != arrival->into.num_bytes) return true;
  Completion& completion = *arrival->completion;
  answer(RingHead::Kind::kFetched, number);
  release(*arrival);
  completion.done(completion, Status());
  return true;
}

bool RingLink::reads_memory() noexcept {
  uint64_t key = 0;
  reads_memory_ =
      reads_memory_ && shared_.reads_processes &&
      read_process(address_, address_.identity, reinterpret_cast<std::byte*>(&key), sizeof key) == ReadOutcome::kRead;
  return reads_memory_;
}

// ---- Both

unsigned RingLink::advance_all() noexcept {
  if (state_ == State::kNew) connect();  // the bell was full
  if (state_ == State::kCalled) look_for_answer();
  unsigned num_moved = state_ == State::kOpen ? write_waiting() : 0;
  if (state_ == State::kOpen && queue_.empty()) num_moved += push_pieces();
  return num_moved + fetch_more();
}

void RingLink::lose() noexcept {
  state_ = State::kLost;
  bell_.reset();
  writer_.reset();
  reader_.reset();
  while (Waiting* waiting = queue_.front()) {
    Completion* const completion = waiting->completion;
    release(*waiting);
    if (completion != nullptr) completion->done(*completion, lost());
  }
  for (size_t place = 0; place < kept_.size(); ++place) {
    if (kept_[place].completion == nullptr) continue;
    Completion& completion = let_go(kept_[place]);
    completion.done(completion, lost());
  }
  for (IntrusiveList<Arrival>* list : {&fetching_, &pulling_}) {
    while (Arrival* arrival = list->front()) {
      Completion& completion = *arrival->completion;
      release(*arrival);
      completion.done(completion, lost());
    }
  }
}

}  // namespace axon
