// An operation's exchange of messages with its peers. Algorithms are written against a view of it (messaging/view.hpp),
// which may include some of its ranks only. Owned by its operation; progress owner only.
//
//   Task<Status> direct(View& view, const CollectiveArguments& arguments) {
//     Batch batch(view);
//     batch.receive({.peer = left, .slot = 0}, incoming);
//     batch.send({.peer = right, .slot = 0}, outgoing);
//     AXON_CO_TRY(co_await batch);     // all of the batch has moved, or the operation has failed
//     co_return Status();
//   }
//
// (peer, slot) names a message within the operation: sender and receiver use the same slot, and a slot only once per
// pair and direction. Both ends know the length; a different one fails the operation. Several batches may be open at
// once: one for each chunk in flight makes a pipeline. A batch that has been awaited can be used again.
#pragma once

#include <array>
#include <coroutine>
#include <optional>
#include <span>
#include <vector>

#include "base/size_class_pool.hpp"
#include "base/status.hpp"
#include "memory/scratch.hpp"
#include "messaging/inbox.hpp"
#include "messaging/messenger.hpp"
#include "messaging/request.hpp"

namespace axon::messaging {

class View;

// Names a message of an operation: between this rank and `peer`, with this slot (collectives) or tag (point to point).
struct Message {
  int peer;  // rank in the group or view; kAnyRank receives a point-to-point message from any rank
  uint32_t slot = 0;
  // all_to_all: the number of elements in the opposite direction, as this rank expects it. The ranks compare it, so
  // that a sender learns of a mismatch from what it receives; an eager send itself gets no answer.
  uint64_t num_back = 0;
  // Point to point: the index of a later part of a long message, and the message's number (Exchange::message_number).
  uint32_t part = 0;
  uint32_t number = 0;
};

inline constexpr int kAnyRank = -1;
inline constexpr transport::PeerId kNoPeer = UINT32_MAX;

// More than 30 methods: algorithms, the inbox, flow control and diagnosis each call some, on one list of messages.
class Exchange {
 public:
  // The inbox must know the sequence (Inbox::enter) before the first receive of a collective.
  Exchange(Messenger& messenger, Inbox& inbox, uint32_t sequence, const transport::Fingerprint& fingerprint);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const noexcept { return inbox_.team().rank; }
  int size() const noexcept { return inbox_.team().size(); }
  const Topology& topology() const noexcept { return inbox_.team().topology; }
  bool has_rails() const noexcept { return inbox_.team().has_rails; }
  uint32_t sequence() const noexcept { return sequence_; }
  SizeClassPool& size_class_pool() noexcept { return messenger_.size_class_pool(); }

  // For View: returns memory that lives as long as this exchange, or until release_scratch(). At most kMostScratches
  // are taken at once.
  Buffer scratch(size_t num_bytes);
  void release_scratch(Buffer scratch) noexcept;

  // Ends the operation: every batch, open or later, returns this failure. Idempotent; the first reason stays.
  void fail(Status reason) noexcept;
  const Status& failure() const noexcept { return failure_; }

  // Returns whether the transport has completed all of its transfers, so that its memory may be reused.
  bool at_rest() const noexcept { return num_moving_ == 0; }
  // Returns whether it neither sends nor awaits a message.
  bool is_idle() const noexcept { return live_.empty(); }

  // For diagnosis: the ranks whose messages or acknowledgements have not arrived, each once, ascending.
  std::vector<int> ranks_awaited();
  // Calls the action with each rank whose message or acknowledgement has not arrived, once for each message.
  template <typename Action>
  void for_each_awaited(Action action);
  // If it receives from any source, returns ranks from which a message may still come. It returns one, and one more for
  // each rank that is found gone. So all are found in few steps.
  std::vector<int> some_awaited();
  // Returns whether it waits for this lost peer: also if it receives from any rank and all other ranks are gone.
  bool awaits(transport::PeerId peer) noexcept;

  // The rank whose message a receive from any source matched; −1 before.
  int matched_source() const noexcept { return matched_source_; }
  // Awaits that the first part of its point-to-point message has been sent or has matched: from then on the message has
  // a number, that part's sequence number.
  class Numbered;
  Numbered numbered() noexcept;
  std::optional<uint32_t> message_number() const noexcept { return message_number_; }
  // Its receive of a long message has failed: refuses the parts that have not been received, so that the sender learns
  // of it.
  void refuse_later_parts() noexcept;

  // Returns why a posted receive will get no message: its source is gone, or has left and sent no more. Ok otherwise.
  Status hopelessness_of(const Request& receive) const;
  // Returns why messages to and from this rank, which is gone, fail.
  Status loss_of(int rank) const;

  // Returns the ranks for which messages wait here only because these ranks have not received earlier ones, each once,
  // ascending.
  std::vector<int> ranks_short_of_credit();

  // For Inbox: the message for a posted receive has arrived.
  void deliver(Request& receive, const transport::OperationHeader& header, const transport::Payload& payload) noexcept;
  // For FlowControl: there is credit for a send.
  void transmit(Request& send) noexcept;

 private:
  friend class Batch;

  void send(Batch& batch, Message message, ConstBuffer buffer) noexcept;
  void receive(Batch& batch, Message message, Buffer buffer) noexcept;
  Request& make_request(Batch& batch, transport::PeerId peer, const Message& message, Buffer buffer) noexcept;
  Status unreachable(transport::PeerId peer, const Status& why) const;
  bool is_silent(int rank) const noexcept;
  bool are_others_silent() const noexcept;
  void on_moved(Request& request, const Status& status) noexcept;
  void finish(Request& request) noexcept;
  void finish(Request& request, Status failure) noexcept;
  void abandon(Request& request) noexcept;
  void release(Request& request) noexcept;
  void set_number(uint32_t number) noexcept;
  static void on_done(transport::Completion& completion, Status status) noexcept;

  Messenger& messenger_;
  Inbox& inbox_;
  const uint32_t sequence_;
  const transport::Fingerprint fingerprint_;
  // 4 segments (DeviceSegments) with 3 lanes each (hierarchical algorithms), which take up to 4.
  static constexpr size_t kMostScratches = 48;

  IntrusiveList<Request, InExchange> live_;
  size_t num_moving_ = 0;
  union {  // not initialised: most operations take one or none
    std::array<Buffer, kMostScratches> scratches_;
  };
  size_t num_scratches_ = 0;
  int matched_source_ = -1;
  std::optional<uint32_t> message_number_;
  Numbered* awaits_number_ = nullptr;
  Status failure_;
};

template <typename Action>
void Exchange::for_each_awaited(Action action) {
  for (Request* request = live_.front(); request != nullptr; request = live_.next(*request)) {
    const bool sends = request->header.source == static_cast<uint32_t>(rank());
    const uint32_t other = sends ? request->header.destination : request->header.source;
    if (other != kAnySource) action(static_cast<int>(other));
  }
}

class Exchange::Numbered final : public Wakeable {
 public:
  explicit Numbered(Exchange& exchange) noexcept : exchange_(exchange) {}
  ~Numbered();

  bool await_ready() const noexcept { return exchange_.message_number_ || !exchange_.failure_.ok(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept {
    set_waiter(waiter);
    exchange_.awaits_number_ = this;
  }
  Status await_resume() const { return exchange_.failure_.clone(); }

 private:
  Exchange& exchange_;
};

inline Exchange::Numbered Exchange::numbered() noexcept {
  return Numbered(*this);
}

// A set of messages that is awaited as one.
class Batch : public Wakeable {
 public:
  explicit Batch(Exchange& exchange) noexcept : exchange_(exchange) {}
  explicit Batch(const View& view) noexcept;
  ~Batch();

  void send(Message message, ConstBuffer buffer) noexcept;
  void receive(Message message, Buffer buffer) noexcept;

  // A separate object, since g++ before 13 copies what `co_await f()` awaits when f returns a reference.
  struct Awaiter {
    Batch& batch;
    bool await_ready() const noexcept { return batch.num_outstanding_ == 0; }
    void await_suspend(std::coroutine_handle<> waiter) noexcept { batch.set_waiter(waiter); }
    Status await_resume() const { return batch.exchange_.failure().clone(); }
  };
  Awaiter operator co_await() noexcept { return {*this}; }

 private:
  friend class Exchange;
  Message in_group(Message message) const noexcept {
    if (!ranks_.empty()) message.peer = ranks_[static_cast<size_t>(message.peer)];
    message.slot += first_slot_;
    return message;
  }
  void one_less() noexcept;

  Exchange& exchange_;
  const std::span<const int> ranks_;  // the group's ranks, by rank in the view; empty: they are the same
  const uint32_t first_slot_ = 0;
  size_t num_outstanding_ = 0;
};

}  // namespace axon::messaging
