// What this process and another one of its host have to do with each other: a ring each way, what waits for room there,
// and long payloads, which wait at their sender.
//
//   kMessage   a message, whole
//   kRts       a message whose payload (RemoteBytes) its receiver is to fetch or refuse
//   kAck       by the receiver: it has the payload; kNack: it does not want it, and why (transport/nack.hpp)
//   kCts       by a receiver that may not read the sender's memory: send it, in …
//   kFragment  … of these, in order
//
// Answers name the RTS by its number, in the place of a header's key. None is believed that names another one.
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

// An RTS's payload.
struct RemoteBytes {
  uint64_t address = 0;
  uint64_t num_bytes = 0;
  uint64_t number = 0;
};
static_assert(sizeof(RemoteBytes) == 24);

class RingLink {
 public:
  // What links of one transport share.
  struct Shared {
    RingAddress own;
    bool reads_processes = true;
    Receiver* receiver = nullptr;
    SizeClassPool pool;
  };

  enum class State : uint8_t {
    kNew,
    kCalled,  // and has not mapped our ring yet: what is sent waits
    kOpen,
    kNetwork,  // takes no ring of ours: all goes by the network
    kLost,
  };

  RingLink(Shared& shared, const RingAddress& address) noexcept : shared_(shared), address_(address) {}
  ~RingLink();
  RingLink(const RingLink&) = delete;
  RingLink& operator=(const RingLink&) = delete;

  bool is_of(const RingAddress& address) const noexcept { return address_ == address; }
  State state() const noexcept { return state_; }
  bool is_live() const noexcept { return state_ != State::kNetwork && state_ != State::kLost; }
  bool reads() const noexcept { return reader_.has_value(); }
  // Why nothing can come of it any more; null: nothing is wrong.
  const char* fault() const noexcept { return fault_; }
  // Whether payloads come by one copy. Tries it.
  bool reads_memory() noexcept;

  // Makes the ring and calls, if it is new. Whose ring is read is answered by a ring: that is tried again. So it is,
  // for a second, where one of the two has no file descriptor left.
  void connect() noexcept;
  std::optional<Status> send(const MessageHeader& header, ConstBuffer payload, Completion& completion) noexcept;
  std::optional<Status> send_rendezvous(const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept;
  // See Transport::withdraw.
  bool withdraw(const MessageHeader& call) noexcept;
  // What has waited since connect(), once it takes no ring: in order, by way of the network.
  void hand_over(Transport& network, PeerId peer) noexcept;

  // Its ring; or not, and then it takes none of ours either.
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
  // What moves by driving alone: it waits for room, for the other process to map our ring, or to be read.
  bool has_work() const noexcept {
    return !queue_.empty() || state_ == State::kCalled || !pulled_.empty() || !fetching_.empty();
  }
  unsigned advance() noexcept { return has_work() ? advance_all() : 0; }
  // All that was sent is where it can be read, or has been fetched.
  bool is_at_rest() const noexcept { return queue_.empty() && kept_.empty() && pulled_.empty(); }

  bool is_gone() const noexcept;
  // Nothing comes or goes any more: what was under way fails.
  void lose() noexcept;

  // A payload that waits at the other process, from its arrival until it has been fetched or refused. As a Payload's
  // rendezvous it is told apart from the network's.
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
  void find_harm(const char* what) noexcept;  // which no process of ours does
  bool write(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept;
  void answer(RingHead::Kind kind, uint64_t number, const Status& why = Status()) noexcept;
  Waiting& enqueue(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept;
  void release(Waiting& waiting) noexcept;
  bool take_back(Waiting& waiting) noexcept;
  unsigned write_waiting() noexcept;
  void offer_ring() noexcept;
  void await_descriptors(const char* whose) noexcept;

  uint64_t keep(ConstBuffer payload, Completion& completion) noexcept;
  Completion& let_go(Kept& kept) noexcept;
  unsigned push_fragment() noexcept;

  bool receive(RingHead::Kind kind, const MessageHeader& header, const Payload& payload) noexcept;
  bool receive_rts(const MessageHeader& header, const Payload& payload) noexcept;
  bool receive_fragment(uint64_t number, const Payload& payload) noexcept;
  unsigned fetch_more() noexcept;
  // Of what is fetched; null while more is to come.
  std::optional<Status> read_chunk(Arrival& arrival) noexcept;

  Shared& shared_;
  const RingAddress address_;
  State state_ = State::kNew;
  bool reads_memory_ = true;  // as far as is known
  bool refuses_ring_ = false;
  const char* fault_ = nullptr;
  uint64_t call_ = 0;                      // the number of the latest
  sync::Clock::time_point short_since_{};  // of descriptors, here or there; the epoch: not
  sync::Clock::time_point next_try_{};
  std::optional<WakeUpPipe> wake_up_pipe_;
  std::optional<RingWriter> writer_;
  std::optional<RingReader> reader_;
  IntrusiveList<Waiting> queue_;  // to be written, in order: by driving
  size_t num_waiting_ = 0;
  Numbered<Kept> numbers_;
  IntrusiveList<Kept> kept_;         // until the other process answers
  IntrusiveList<Kept> pulled_;       // and asks for fragments: by driving, in turn
  IntrusiveList<Arrival> held_;      // until fetched or refused
  IntrusiveList<Arrival> fetching_;  // more is to be read: by driving
  IntrusiveList<Arrival> pulling_;   // more is to come
};

}  // namespace axon::transport
