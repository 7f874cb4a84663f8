// The connection between this process and another one on its host. It consists of a ring in each direction, the
// messages that wait for room, and long payloads, which wait at their sender. A RingTransport owns its links; the
// progress owner uses them.
//
//   kMessage  a whole message
//   kRts      a message whose payload (RemoteBytes) its receiver is to fetch or refuse
//   kAck      from the receiver: it has the payload
//   kNack     from the receiver: it refuses the payload, and why (transport/nack.hpp)
//   kCts      from a receiver that cannot read the sender's memory: send the payload in fragments
//   kData     a fragment of a payload, in order
//
// Answers and DATA carry the RTS's number (TransferHeader). An unknown number is rejected.
#pragma once

#include <cstdint>
#include <optional>

#include "base/intrusive_list.hpp"
#include "base/numbered.hpp"
#include "base/size_class_pool.hpp"
#include "base/sync.hpp"
#include "transport/rings/doorbell.hpp"
#include "transport/rings/process_memory.hpp"
#include "transport/rings/ring.hpp"
#include "transport/tagged.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

// The payload of an RTS: where the sender's payload lies.
struct RemoteBytes {
  uint64_t address = 0;
  uint64_t num_bytes = 0;
  uint64_t number = 0;
};
static_assert(sizeof(RemoteBytes) == 24);

// More than 30 methods: messages, answers and fragments of both directions share one queue, and a fault in any of them
// ends the link.
class RingLink {
 public:
  // State shared by all links of one transport.
  struct Shared {
    RingAddress own;
    bool reads_processes = true;
    Receiver* receiver = nullptr;
    SizeClassPool pool;
  };

  enum class State : uint8_t {
    kNew,
    kCalled,  // the peer has been called and has not mapped our ring yet: messages wait
    kOpen,
    kNetwork,  // the peer accepts no ring of ours: all messages take the network
    kLost,
  };

  RingLink(Shared& shared, const RingAddress& address) noexcept : shared_(shared), address_(address) {}
  ~RingLink();
  RingLink(const RingLink&) = delete;
  RingLink& operator=(const RingLink&) = delete;

  int32_t pid() const noexcept { return address_.pid; }
  bool is_of(const RingAddress& address) const noexcept { return address_ == address; }
  State state() const noexcept { return state_; }
  bool is_live() const noexcept { return state_ != State::kNetwork && state_ != State::kLost; }
  bool reads() const noexcept { return reader_.has_value(); }
  // Why this link cannot go on; null if nothing is wrong.
  const char* fault() const noexcept { return fault_; }
  // Returns whether payloads are read from the peer's memory with one copy. Tries to read.
  bool reads_memory() noexcept;

  // If the link is new, makes the ring and calls the peer. A peer whose ring is read here must accept ours, so a failed
  // attempt is repeated. It is also repeated, for a second, if one of the two processes has no file descriptor left.
  void connect() noexcept;
  std::optional<Status> send(const MessageHeader& header, ConstBuffer payload, Completion& completion) noexcept;
  std::optional<Status> send_rendezvous(const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept;
  // See Transport::withdraw.
  bool withdraw(const CallHeader& call) noexcept;
  // Sends what has waited since connect() through the network, in order, after the peer has refused the ring.
  void hand_over(Transport& network, PeerId peer) noexcept;

  // open() maps the peer's ring. refuse_ring() records that it cannot be read; the peer then accepts none of ours
  // either.
  Status open(int descriptor) noexcept;
  void refuse_ring() noexcept {
    refuses_ring_ = true;
    if (state_ == State::kOpen) look_for_answer();
  }
  unsigned read(unsigned most) noexcept;
  bool has_message() const noexcept { return reader_ && reader_->has_message(); }
  void fall_asleep() noexcept {
    if (reader_) reader_->fall_asleep();
  }
  // Returns whether progress() has work here: messages wait for room or for the peer to map our ring, or payloads are
  // in transfer.
  bool has_work() const noexcept {
    return !queue_.empty() || state_ == State::kCalled || !pulled_.empty() || !fetching_.empty();
  }
  unsigned advance() noexcept { return has_work() ? advance_all() : 0; }
  // Returns whether all sent messages are in the ring, and all sent payloads have been fetched or refused.
  bool is_at_rest() const noexcept { return queue_.empty() && kept_.empty() && pulled_.empty(); }

  bool is_gone() const noexcept;
  // Ends the link: all transfers in progress fail.
  void lose() noexcept;

  // A payload that waits at the other process, from its arrival until it has been fetched or refused. Its Handle tells
  // it apart from a rendezvous of the network.
  class Arrival;
  using Handle = Tagged<Arrival, 62>;
  static std::optional<Status> fetch(Arrival& arrival, Buffer into, Completion& completion) noexcept;
  static void refuse(Arrival& arrival, const Status& why) noexcept;

 private:
  struct Waiting;
  struct Kept;

  unsigned advance_all() noexcept;
  Status open_wake_up_pipe() noexcept;
  Status make_ring() noexcept;
  void look_for_answer() noexcept;
  void look_for_fault() noexcept;
  void find_harm(const char* what) noexcept;  // records a protocol violation, and reports it to the receiver
  template <typename Header>
  bool write(RingHead::Kind kind, const Header& header, ConstBuffer payload) noexcept;
  void answer(RingHead::Kind kind, uint64_t number, const Status& why = Status()) noexcept;
  Waiting& enqueue(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept;
  Waiting& enqueue_answer(RingHead::Kind kind, const TransferHeader& header, const Status& why) noexcept;
  void release(Waiting& waiting) noexcept;
  bool take_back(Waiting& waiting) noexcept;
  unsigned write_waiting() noexcept;
  void offer_ring() noexcept;
  void await_descriptors(const char* whose) noexcept;

  uint64_t keep(ConstBuffer payload, Completion& completion) noexcept;
  Completion& let_go(Kept& kept) noexcept;
  unsigned push_data() noexcept;

  bool receive(RingHead::Kind kind, const MessageHeader& header, const Payload& payload) noexcept;
  bool receive(RingHead::Kind kind, const TransferHeader& header, const Payload& payload) noexcept;
  bool receive_rts(const MessageHeader& header, const Payload& payload) noexcept;
  bool receive_data(uint64_t number, const Payload& payload) noexcept;
  unsigned fetch_more() noexcept;
  // Returns the status of the fetch; null while more is to be read.
  std::optional<Status> read_chunk(Arrival& arrival) noexcept;

  Shared& shared_;
  const RingAddress address_;
  State state_ = State::kNew;
  bool reads_memory_ = true;  // until a read fails
  bool refuses_ring_ = false;
  const char* fault_ = nullptr;
  uint64_t call_ = 0;  // the number of the latest call
  // When descriptors became short in either process; the epoch: they are not short.
  sync::Clock::time_point short_since_{};
  sync::Clock::time_point next_try_{};
  std::optional<WakeUpPipe> wake_up_pipe_;
  std::optional<RingWriter> writer_;
  std::optional<RingReader> reader_;
  IntrusiveList<Waiting> queue_;  // to be written, in order, by progress()
  size_t num_waiting_ = 0;
  Numbered<Kept> numbers_;
  IntrusiveList<Kept> kept_;         // payloads for which the other process has not answered
  IntrusiveList<Kept> pulled_;       // payloads that the other process wants in fragments, sent in turn by progress()
  IntrusiveList<Arrival> held_;      // payloads to be fetched or refused
  IntrusiveList<Arrival> fetching_;  // payloads being read, by progress()
  IntrusiveList<Arrival> pulling_;   // payloads of which more fragments are to arrive
};

}  // namespace axon::transport
