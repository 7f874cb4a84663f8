// An operation's side of the conversation with its peers: what an algorithm is written against.
//
//   Task<Status> direct(Exchange& exchange, const CollectiveArguments& arguments) {
//     Batch batch(exchange);
//     batch.receive({.peer = left, .slot = 0}, incoming);
//     batch.send({.peer = right, .slot = 0}, outgoing);
//     AXON_CO_TRY(co_await batch);     // all of the batch has moved, or the operation has failed
//     co_return Status();
//   }
//
// (peer, slot) names a message within the operation: sender and receiver use the same slot, and no slot twice for one
// pair and direction. Both ends know the length; a different one fails the operation. Several batches may be open at
// once: one for each chunk in flight makes a pipeline. A batch that has been awaited can be used again.
#pragma once

#include <array>
#include <coroutine>
#include <vector>

#include "base/size_class_pool.hpp"
#include "base/status.hpp"
#include "memory/scratch.hpp"
#include "messaging/inbox.hpp"
#include "messaging/messenger.hpp"
#include "messaging/request.hpp"

namespace axon::messaging {

// Which message of an operation: between this rank and `peer`, in this slot (collectives) or with this tag.
struct Message {
  int peer;  // rank in the group; kAnyRank receives a point-to-point message from anyone
  uint32_t slot = 0;
  // all_to_all: how many elements go the other way between the two, as this rank has it. The ranks compare that, so
  // that a sender learns of a mismatch from what it receives; what it has sent eagerly ends without an answer.
  uint64_t num_back = 0;
};

inline constexpr int kAnyRank = -1;
inline constexpr transport::PeerId kNoPeer = UINT32_MAX;

class Exchange {
 public:
  // The inbox must know the sequence (Inbox::enter) before the first receive of a collective.
  Exchange(Messenger& messenger, Inbox& inbox, uint32_t sequence, const transport::Fingerprint& fingerprint);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const noexcept { return inbox_.team().rank; }
  int size() const noexcept { return inbox_.team().size(); }
  bool on_one_host() const noexcept { return inbox_.team().on_one_host; }
  const transport::Fingerprint& fingerprint() const noexcept { return fingerprint_; }
  uint32_t sequence() const noexcept { return sequence_; }
  SizeClassPool& size_class_pool() noexcept { return messenger_.size_class_pool(); }

  // Memory for the algorithm that lives as long as this exchange: when the algorithm has failed and is gone, transfers
  // may still read and write there. Page-aligned, at least as long as asked for; at most kMostScratches times.
  Buffer scratch(size_t num_bytes);

  // Ends the operation: every batch, open or later, yields this failure. Idempotent; the first reason stays.
  void fail(Status reason) noexcept;
  const Status& failure() const noexcept { return failure_; }

  // Nothing of it is in the transport's hands: its memory may be reused.
  bool at_rest() const noexcept { return num_moving_ == 0; }

  // For diagnosis: the ranks whose messages or acknowledgements have not come, each once, ascending.
  std::vector<int> ranks_awaited();
  // Whether it waits for this peer, which is lost: also if it receives from anyone and nobody else is left.
  bool awaits(transport::PeerId peer) noexcept;

  // The rank that a receive from any source was served by; −1 before.
  int matched_source() const noexcept { return matched_source_; }

  // Why a posted receive will get nothing: whom it awaits is gone, or has left and sent no more. Ok while it may.
  Status hopelessness_of(const Request& receive) const;

  // The ranks to which messages wait here only since they have not received what was sent to them before, each once,
  // ascending.
  std::vector<int> ranks_behind();

  // For Inbox: the message for a posted receive is here.
  void deliver(Request& receive, const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  // For FlowControl: there is credit for a send.
  void transmit(Request& send) noexcept;

 private:
  friend class Batch;

  void send(Batch& batch, Message message, ConstBuffer buffer) noexcept;
  void receive(Batch& batch, Message message, Buffer buffer) noexcept;
  Request& make_request(Batch& batch, transport::PeerId peer, const Message& message, Buffer buffer) noexcept;
  bool fits(const Request& receive, const transport::MessageHeader& header,
            const transport::Payload& payload) const noexcept;
  Status misfit(const Request& receive, const transport::MessageHeader& header,
                const transport::Payload& payload) const;
  Status lost(int rank) const;
  Status unreachable(transport::PeerId peer, const Status& why) const;
  bool is_silent(int rank) const noexcept;
  bool nobody_left() const noexcept;
  void on_moved(Request& request, const Status& status) noexcept;
  void finish(Request& request) noexcept;
  void finish(Request& request, Status failure) noexcept;
  void abandon(Request& request) noexcept;
  void release(Request& request) noexcept;
  static void on_done(transport::Completion& completion, Status status) noexcept;

  Messenger& messenger_;
  Inbox& inbox_;
  const uint32_t sequence_;
  const transport::Fingerprint fingerprint_;
  static constexpr size_t kMostScratches = 4;

  IntrusiveList<Request, InExchange> live_;
  size_t num_moving_ = 0;
  std::array<Buffer, kMostScratches> scratches_;
  size_t num_scratches_ = 0;
  int matched_source_ = -1;
  Status failure_;
};

// A set of messages that is awaited as one.
class Batch : public Wakeable {
 public:
  explicit Batch(Exchange& exchange) noexcept : exchange_(exchange) {}
  ~Batch();

  void send(Message message, ConstBuffer buffer) noexcept;
  void receive(Message message, Buffer buffer) noexcept;

  // An object of its own, since g++ before 13 copies what `co_await f()` awaits when f returns a reference.
  struct Awaiter {
    Batch& batch;
    bool await_ready() const noexcept { return batch.num_outstanding_ == 0; }
    void await_suspend(std::coroutine_handle<> waiter) noexcept { batch.set_waiter(waiter); }
    Status await_resume() const { return batch.exchange_.failure().clone(); }
  };
  Awaiter operator co_await() noexcept { return {*this}; }

 private:
  friend class Exchange;
  void one_less() noexcept;

  Exchange& exchange_;
  size_t num_outstanding_ = 0;
};

}  // namespace axon::messaging
