#include "transport/rings/ring_link.hpp"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/copy_threads.hpp"
#include "base/log.hpp"
#include "transport/nack.hpp"

namespace axon::transport {

// The most bytes that one read copies; then other links have their turn.
static constexpr size_t kChunk = size_t{1} << 20;
// Small enough for several in the ring at once: one is written while another is read.
static constexpr size_t kRingFragmentBytes = size_t{16} << 10;
// A peer that lets this many answers wait keeps sending without reading them, so it is malicious or broken.
static constexpr size_t kMostWaiting = size_t{1} << 20;
struct RingLink::Waiting : ListNode<Waiting> {
  RingHead::Kind kind = RingHead::Kind::kMessage;
  MessageHeader header;  // of a message or an RTS
  ConstBuffer payload;
  RemoteBytes rts;                   // the payload of an RTS
  TransferHeader answer;             // the header of an answer
  Status why;                        // the reason of a NACK, encoded into its payload
  Completion* completion = nullptr;  // the completion of a message

  bool is_answer() const noexcept { return kind != RingHead::Kind::kMessage && kind != RingHead::Kind::kRts; }
};

// A payload of ours that the other process is to fetch.
struct RingLink::Kept : ListNode<Kept> {
  Kept(ConstBuffer bytes, Completion& of) noexcept : payload(bytes), completion(of) {}

  const ConstBuffer payload;
  Completion& completion;
  uint64_t number = 0;
  bool is_pulled = false;  // whether fragments have been requested, which a peer may do once
  size_t num_sent = 0;
};

class RingLink::Arrival : public ListNode<Arrival> {
 public:
  Arrival(RingLink& from, const RemoteBytes& there) noexcept : link(from), remote(there) {}
  void release() noexcept {
    unlink();
    link.shared_.pool.release(this, sizeof *this);
  }

  RingLink& link;
  const RemoteBytes remote;
  Buffer into;
  Completion* completion = nullptr;
  size_t num_here = 0;
};

static Status lost() {
  return {ErrorCode::kPeerLost, "its process is gone, or has been given up"};
}

RingLink::~RingLink() {
  while (Waiting* waiting = queue_.front()) release(*waiting);
  for (IntrusiveList<Kept>* list : {&kept_, &pulled_}) {
    while (Kept* kept = list->front()) let_go(*kept);
  }
  for (IntrusiveList<Arrival>* list : {&held_, &fetching_, &pulling_}) {
    while (Arrival* arrival = list->front()) arrival->release();
  }
}

// ---- Sending

// Returns whether the entry was written. The caller checks that no earlier message waits in the queue.
template <typename Header>
bool RingLink::write(RingHead::Kind kind, const Header& header, ConstBuffer payload) noexcept {
  switch (writer_->write(kind, header, payload)) {
    case RingWriter::Outcome::kFull:
      return false;
    case RingWriter::Outcome::kWrittenToSleeper:
      wake_up_pipe_->call({.key = address_.key, .caller = shared_.own});
      break;
    case RingWriter::Outcome::kWritten:
      break;
  }
  return true;
}

RingLink::Waiting& RingLink::enqueue(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept {
  auto* waiting = new (shared_.pool.allocate(sizeof(Waiting))) Waiting;
  waiting->kind = kind;
  waiting->header = header;
  waiting->payload = payload;
  ++num_waiting_;
  queue_.push_back(*waiting);
  return *waiting;
}

RingLink::Waiting& RingLink::enqueue_answer(RingHead::Kind kind, const TransferHeader& header,
                                            const Status& why) noexcept {
  Waiting& waiting = enqueue(kind, {}, {});
  waiting.answer = header;
  waiting.why = why.clone();
  return waiting;
}

void RingLink::release(Waiting& waiting) noexcept {
  --num_waiting_;
  waiting.unlink();
  waiting.~Waiting();
  shared_.pool.release(&waiting, sizeof waiting);
}

// A send completes only after the message is in the ring, where the receiver finds it even if this process has ended.
std::optional<Status> RingLink::send(const MessageHeader& header, ConstBuffer payload,
                                     Completion& completion) noexcept {
  if (state_ == State::kLost) [[unlikely]]
    return lost();
  if (payload.num_bytes > RingMemory::kMostBytes) return send_rendezvous(header, payload, completion);
  if (state_ == State::kOpen && queue_.empty() && write(RingHead::Kind::kMessage, header, payload)) return Status();
  enqueue(RingHead::Kind::kMessage, header, payload).completion = &completion;
  return std::nullopt;
}

std::optional<Status> RingLink::send_rendezvous(const MessageHeader& header, ConstBuffer payload,
                                                Completion& completion) noexcept {
  if (state_ == State::kLost) return lost();
  const RemoteBytes remote{.address = reinterpret_cast<uint64_t>(payload.data),
                           .num_bytes = payload.num_bytes,
                           .number = keep(payload, completion)};
  const auto bytes = std::as_bytes(std::span(&remote, 1));
  const ConstBuffer rts{.data = bytes.data(), .num_bytes = bytes.size()};
  if (state_ != State::kOpen || !queue_.empty() || !write(RingHead::Kind::kRts, header, rts)) {
    Waiting& waiting = enqueue(RingHead::Kind::kRts, header, {});
    waiting.rts = remote;
    waiting.payload = {.data = reinterpret_cast<const std::byte*>(&waiting.rts), .num_bytes = sizeof remote};
  }
  return std::nullopt;
}

static ConstBuffer payload_of(const nack::Encoded& reason) noexcept {
  return {.data = reason.bytes().data(), .num_bytes = reason.bytes().size()};
}

void RingLink::answer(RingHead::Kind kind, uint64_t number, const Status& why) noexcept {
  if (state_ == State::kLost) return;
  connect();
  const TransferHeader header{.number = number};
  if (state_ == State::kOpen && queue_.empty() && write(kind, header, payload_of(nack::Encoded(why)))) return;
  enqueue_answer(kind, header, why);
  if (num_waiting_ > kMostWaiting) find_harm("it sends messages, but does not read the answers");
}

unsigned RingLink::write_waiting() noexcept {
  unsigned num_written = 0;
  for (Waiting* first = queue_.front(); first != nullptr && state_ == State::kOpen; first = queue_.front()) {
    const nack::Encoded reason(first->why);
    const bool is_written = first->is_answer() ? write(first->kind, first->answer, payload_of(reason))
                                               : write(first->kind, first->header, first->payload);
    if (!is_written) break;
    ++num_written;
    Completion* const completion = first->completion;
    release(*first);
    if (completion != nullptr) completion->done(*completion, Status());
  }
  return num_written;
}

// Payload frames of a call need not be sent at all. The call itself still needs an answer, which frees its slot.
bool RingLink::take_back(Waiting& waiting) noexcept {
  Completion* completion = waiting.completion;
  if (waiting.kind == RingHead::Kind::kRts) {
    Kept* const kept = numbers_.find(waiting.rts.number);
    completion = kept != nullptr ? &let_go(*kept) : nullptr;
  }
  const bool is_call = waiting.header.kind != MessageKind::kInvokePayload;
  if (is_call) {
    waiting.kind = RingHead::Kind::kMessage;
    waiting.header.kind = MessageKind::kWithdrawn;
    waiting.payload = {};
    waiting.completion = nullptr;
  } else {
    release(waiting);
  }
  if (completion != nullptr) completion->done(*completion, Status());
  return is_call;
}

static bool is_of_call(const MessageHeader& header, const CallHeader& call) noexcept {
  const bool is_sent_by_caller = header.kind == MessageKind::kInvoke || header.kind == MessageKind::kTell ||
                                 header.kind == MessageKind::kInvokePayload;
  return is_sent_by_caller && header.key == call.key && header.as<CallHeader>().number == call.number;
}

bool RingLink::withdraw(const CallHeader& call) noexcept {
  bool has_waited = false;
  for (Waiting* waiting = queue_.front(); waiting != nullptr;) {
    Waiting* const next = queue_.next(*waiting);
    if (!waiting->is_answer() && is_of_call(waiting->header, call)) has_waited |= take_back(*waiting);
    waiting = next;
  }
  if (!has_waited && state_ == State::kOpen) writer_->withdraw(call);
  return has_waited;
}

// Answers are dropped: over the network, no rendezvous exists that they could name.
void RingLink::hand_over(Transport& network, PeerId peer) noexcept {
  while (Waiting* first = queue_.front()) {
    Completion* completion = first->completion;
    std::optional<Status> sent;
    if (first->kind == RingHead::Kind::kMessage) {
      if (completion == nullptr) completion = &unattended;  // of what has been taken back
      sent = network.send(peer, first->header, first->payload, *completion);
    } else if (Kept* kept = first->kind == RingHead::Kind::kRts ? numbers_.find(first->rts.number) : nullptr) {
      const ConstBuffer payload = kept->payload;
      completion = &let_go(*kept);
      sent = network.send_rendezvous(peer, first->header, payload, *completion);
    }
    release(*first);
    if (sent) completion->done(*completion, std::move(*sent));
  }
}

// ---- Payloads that wait at this process

uint64_t RingLink::keep(ConstBuffer payload, Completion& completion) noexcept {
  auto& kept = *new (shared_.pool.allocate(sizeof(Kept))) Kept(payload, completion);
  kept.number = numbers_.add(kept);
  kept_.push_back(kept);
  return kept.number;
}

Completion& RingLink::let_go(Kept& kept) noexcept {
  Completion& completion = kept.completion;
  numbers_.remove(kept.number);
  kept.unlink();
  shared_.pool.release(&kept, sizeof kept);
  return completion;
}

// Sends the next fragment of the oldest requested payload if the ring has room.
unsigned RingLink::push_data() noexcept {
  Kept* const kept = pulled_.front();
  if (kept == nullptr) return 0;
  const size_t length = std::min(kRingFragmentBytes, kept->payload.num_bytes - kept->num_sent);
  const TransferHeader header{.number = kept->number};
  if (!write(RingHead::Kind::kData, header, kept->payload.slice(kept->num_sent, length))) return 0;
  kept->num_sent += length;
  kept->unlink();
  (kept->num_sent != kept->payload.num_bytes ? pulled_ : kept_).push_back(*kept);
  return 1;
}

// ---- Receiving

Status RingLink::open(int descriptor) noexcept {
  AXON_TRY(open_wake_up_pipe());
  Result<RingReader> opened = RingReader::open(address_.pid, descriptor, address_.key, shared_.own.key);
  if (!opened.ok()) return std::move(opened.status());
  reader_.emplace(std::move(opened).value());
  return Status();
}

unsigned RingLink::read(unsigned most) noexcept {
  if (!reader_) return 0;
  bool makes_sense = true;
  const auto deliver = [&](RingHead::Kind kind, const auto& header, const Payload& payload) {
    if (fault_ == nullptr && makes_sense) makes_sense = receive(kind, header, payload);
  };
  const unsigned num_read = reader_->read(most, deliver);
  makes_sense = makes_sense && !reader_->is_broken();
  if (!makes_sense) find_harm("it has written invalid data into shared memory");
  return num_read;
}

// Returns whether the message is valid. False: no process of ours writes such a message.
bool RingLink::receive(RingHead::Kind kind, const MessageHeader& header, const Payload& payload) noexcept {
  if (kind == RingHead::Kind::kMessage) [[likely]] {
    shared_.receiver->on_message(header, payload);
    return true;
  }
  return receive_rts(header, payload);
}

bool RingLink::receive(RingHead::Kind kind, const TransferHeader& header, const Payload& payload) noexcept {
  if (kind == RingHead::Kind::kData) return receive_data(header.number, payload);
  Kept* const kept = numbers_.find(header.number);
  const bool is_nack = kind == RingHead::Kind::kNack;
  if (kept == nullptr || payload.num_bytes > (is_nack ? nack::Encoded::kMostBytes : 0)) return false;
  if (kind == RingHead::Kind::kCts) {
    if (std::exchange(kept->is_pulled, true)) return false;
    kept->unlink();
    pulled_.push_back(*kept);
    return true;
  }
  Completion& completion = let_go(*kept);
  completion.done(completion, is_nack ? nack::decode({payload.bytes, payload.num_bytes}) : Status());
  return true;
}

bool RingLink::receive_rts(const MessageHeader& header, const Payload& payload) noexcept {
  RemoteBytes remote;
  if (payload.num_bytes != sizeof remote) return false;
  std::memcpy(&remote, payload.bytes, sizeof remote);
  if (remote.num_bytes == 0) return false;
  auto* arrival = new (shared_.pool.allocate(sizeof(Arrival))) Arrival(*this, remote);
  held_.push_back(*arrival);
  shared_.receiver->on_message(header, {.num_bytes = remote.num_bytes, .rendezvous = Handle::of(*arrival)});
  return true;
}

void RingLink::refuse(Arrival& arrival, const Status& why) noexcept {
  arrival.link.answer(RingHead::Kind::kNack, arrival.remote.number, why);
  arrival.release();
}

std::optional<Status> RingLink::fetch(Arrival& arrival, Buffer into, Completion& completion) noexcept {
  RingLink& link = arrival.link;
  arrival.into = into;
  arrival.completion = &completion;
  arrival.unlink();
  const bool is_first = link.fetching_.empty();
  link.fetching_.push_back(arrival);
  return is_first ? link.read_chunk(arrival) : std::nullopt;
}

// Payloads that cannot be read from the peer's memory are requested through the ring.
std::optional<Status> RingLink::read_chunk(Arrival& arrival) noexcept {
  if (state_ == State::kLost) {
    arrival.release();
    return lost();
  }
  const size_t length = CopyThreads::instance().num_bytes_of_step(arrival.into.num_bytes - arrival.num_here, kChunk);
  const ReadOutcome outcome = reads_memory_ && shared_.reads_processes
                                  ? read_process(address_, arrival.remote.address + arrival.num_here,
                                                 arrival.into.data + arrival.num_here, length)
                                  : ReadOutcome::kForbidden;
  switch (outcome) {
    case ReadOutcome::kRead:
      arrival.num_here += length;
      if (arrival.num_here != arrival.into.num_bytes) return std::nullopt;
      answer(RingHead::Kind::kAck, arrival.remote.number);
      arrival.release();
      return Status();
    case ReadOutcome::kForbidden:
      reads_memory_ = false;
      [[fallthrough]];
    case ReadOutcome::kUnreadable:
      arrival.num_here = 0;
      arrival.unlink();
      pulling_.push_back(arrival);
      answer(RingHead::Kind::kCts, arrival.remote.number);
      return std::nullopt;
    case ReadOutcome::kGone:
      break;
  }
  arrival.release();
  return lost();
}

// Continues the fetch that has waited longest.
unsigned RingLink::fetch_more() noexcept {
  Arrival* const arrival = fetching_.pop_front();
  if (arrival == nullptr) return 0;
  fetching_.push_back(*arrival);
  Completion& completion = *arrival->completion;
  if (auto fetched = read_chunk(*arrival)) completion.done(completion, std::move(*fetched));
  return 1;
}

bool RingLink::receive_data(uint64_t number, const Payload& payload) noexcept {
  Arrival* const arrival = pulling_.find([&](const Arrival& each) { return each.remote.number == number; });
  if (arrival == nullptr) return false;
  if (payload.num_bytes == 0 || payload.num_bytes > arrival->into.num_bytes - arrival->num_here) return false;
  std::memcpy(arrival->into.data + arrival->num_here, payload.bytes, payload.num_bytes);
  arrival->num_here += payload.num_bytes;
  if (arrival->num_here != arrival->into.num_bytes) return true;
  Completion& completion = *arrival->completion;
  answer(RingHead::Kind::kAck, number);
  arrival->release();
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
  if (state_ == State::kNew) connect();  // the pipe was full at the last attempt
  if (state_ == State::kCalled) look_for_answer();
  look_for_fault();
  unsigned num_moved = state_ == State::kOpen ? write_waiting() : 0;
  if (state_ == State::kOpen && queue_.empty()) num_moved += push_data();
  return num_moved + fetch_more();
}

// Messages that wait for a closed peer will never be read. All messages that it has written are read first.
void RingLink::look_for_fault() noexcept {
  if (fault_ == nullptr && wake_up_pipe_ && wake_up_pipe_->is_closed() && !has_message())
    fault_ = "it no longer accepts messages";
}

void RingLink::find_harm(const char* what) noexcept {
  if (fault_ != nullptr) return;
  fault_ = what;
  shared_.receiver->on_refused(what);
}

bool RingLink::is_gone() const noexcept {
  return kill(address_.pid, 0) != 0 && errno == ESRCH;
}

void RingLink::lose() noexcept {
  state_ = State::kLost;
  wake_up_pipe_.reset();
  writer_.reset();
  reader_.reset();
  while (Waiting* waiting = queue_.front()) {
    Completion* const completion = waiting->completion;
    release(*waiting);
    if (completion != nullptr) completion->done(*completion, lost());
  }
  for (IntrusiveList<Kept>* list : {&kept_, &pulled_}) {
    while (Kept* kept = list->front()) {
      Completion& completion = let_go(*kept);
      completion.done(completion, lost());
    }
  }
  for (IntrusiveList<Arrival>* list : {&fetching_, &pulling_}) {
    while (Arrival* arrival = list->front()) {
      Completion& completion = *arrival->completion;
      arrival->release();
      completion.done(completion, lost());
    }
  }
}

}  // namespace axon::transport
