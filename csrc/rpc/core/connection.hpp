// A runtime's connection with one of another process (or of this one): calls in both directions.
//
//   connection->start(call);        // any thread, never blocks: what cannot be sent yet waits, up to a bound
//   connection->wait(call, deadline);
//
// A call takes one of kWindow slots until it has been answered, whether anybody still waits for it or not: so the
// callee never has more than kWindow calls of a connection, and a slot says which of them an answer is for.
// Everything private belongs to the progress owner.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file_descriptor.hpp"
#include "engine/engine.hpp"
#include "rpc/core/call.hpp"
#include "rpc/core/delay_gauge.hpp"
#include "rpc/core/invocation.hpp"
#include "rpc/core/mail_sender.hpp"

namespace axon::rpc {

class RuntimeCore;

// Looks names up without a copy.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const noexcept { return std::hash<std::string_view>()(name); }
};

// What a connection is between.
struct Identity {
  std::string name;             // the other runtime's
  uint64_t incarnation = 0;     // of it: another one after a restart
  engine::PeerAddress address;  // its process's
  uint64_t peer_key = 0;        // what messages to it name
  uint64_t own_key = 0;         // what messages from it name
  FileDescriptor socket{};      // of the handshake: hangs up when the other end's host has gone; none in tests
};

class Connection final : public std::enable_shared_from_this<Connection>, private messaging::Addressee {
 public:
  static constexpr uint32_t kWindow = 1024;

  Connection(RuntimeCore& core, engine::Engine& engine, Identity identity, transport::PeerId peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const Identity& identity() const noexcept { return identity_; }
  engine::Engine& engine() const noexcept { return engine_; }

  void start(Call& call) noexcept;
  bool wait(Call& call, Clock::time_point deadline, Clock::duration spin_budget = pace::kSpinBudget) noexcept;
  // The call fails with kCancelled unless it is finished; the callee is told.
  void cancel(Call& call) noexcept;
  // Where the tensors of an answer go, after Call::on_announced; see Inbound::accept.
  void accept(Call& call, std::span<const Buffer> buffers, std::span<Owner> owners = {}) noexcept;
  // They go nowhere: the call fails with this.
  void decline(Call& call, Status reason) noexcept;
  // Takes no calls any more, in either direction, and ends once those under way are through, or at the deadline; then
  // the peer is told. What was started before is under way. Never blocks; the earliest deadline counts.
  void close(Clock::time_point deadline) noexcept;
  // Drives until it has ended, whoever has ended it; false at the deadline.
  bool await_end(Clock::time_point deadline) noexcept;
  // When it ended nothing was under way.
  bool has_drained() noexcept;
  // Why nothing can be called any more; ok while it can. While it closes, what is under way goes on nevertheless.
  Status failure() noexcept;
  // Nothing goes on any more.
  bool has_ended() noexcept;
  // The peer's process is another one of this host.
  bool is_neighbour() const noexcept { return is_neighbour_; }

  // What a client that exposes and reads tensors notes here.
  struct ZeroCopyState {
    std::atomic<uint64_t> gpus_read_by_peer{0};  // of this process, a bit each
    // When the peer is to be told which of its GPUs this process reads; max: it has been. And the one of this process
    // on which tensors had come then; none: it has never been told.
    std::atomic<Clock::time_point> told_from{Clock::time_point::min()};
    std::atomic<int> gpu{-1};
  };
  ZeroCopyState zero_copy;

 private:
  friend class Call;
  friend class Invocation;
  friend class MailSender;
  friend class RuntimeCore;

  struct Closing;

  // A call of ours that the peer has. It may have found its end here before it is answered there.
  struct CallSlot {
    Call* call = nullptr;
    uint32_t number = 0;  // of the latest call that had this slot
    bool taken = false;
    bool is_told = false;  // of a call without an answer, which has left
    // Of a message to a mailbox that has found its end here: who is to hear of the peer's answer, and its turn.
    MailSender* mail_sender = nullptr;
    int64_t turn = 0;
  };
  // A call of the peer's.
  struct PeerCallSlot {
    Invocation* invocation = nullptr;
    uint32_t number = 0;
  };

  static uint32_t slot_of(uint32_t number) noexcept { return number % kWindow; }

  void on_message(const transport::MessageHeader& header, const transport::Payload& payload) noexcept override;

  // Caller
  void begin(Call& call) noexcept;
  // What it sends is made already, or is waited for.
  void leave(Call& call) noexcept;
  void open(Call& call) noexcept;
  MailSender& mail_sender_of(std::string_view function);
  bool may_call() const noexcept { return failure_.ok() && !ends_after_answers_; }
  bool has_room(Call& call) noexcept;
  bool has_slot_for(const Call& call) const noexcept;
  void take_slot(Call& call) noexcept;
  static void stamp(transport::MessageHeader& header, const Call& call) noexcept;
  void launch(Call& call) noexcept;
  void launch_waiting() noexcept;
  void on_answer(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  void on_answer_payload(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  void finish(Call& call, Status status) noexcept;
  void free_slot(uint32_t number) noexcept;
  void release_slot(Call& call) noexcept;
  void on_late_answer(CallSlot& slot, const transport::MessageHeader& header,
                      const transport::Payload& payload) noexcept;
  // It ends with this, and the callee need not begin it, or go on.
  void give_up(Call& call, Status why) noexcept;
  // Of all calls that have not left.
  template <typename Action>
  void for_each_waiting(Action action) noexcept;
  void end_waiting(const Status& reason) noexcept;

  // Callee
  void on_call(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  void on_cancel(const transport::MessageHeader& header) noexcept;
  void on_withdrawn(const transport::MessageHeader& header) noexcept;
  void note_deadline(Invocation& invocation, const transport::MessageHeader& header) noexcept;
  Invocation* invocation_for(const transport::MessageHeader& header) noexcept;
  void answer(Invocation& invocation) noexcept;

  void tick(Clock::time_point now) noexcept;
  void release_rested() noexcept;
  void begin_closing(Clock::time_point deadline) noexcept;
  void on_close(const transport::MessageHeader& header) noexcept;
  void look_after_closing(Clock::time_point now) noexcept;
  // One of the ends closes it, and waits for what is under way.
  bool is_closing() const noexcept { return (closes_at_ || ends_after_answers_) && failure_.ok(); }
  Status closed_here() const;
  Status closed_there() const;
  // Ends everything, and tells the peer.
  void end(const Status& reason) noexcept;
  // Ends everything; nobody is told over the wire.
  void fail(const Status& reason) noexcept;
  transport::MessageHeader header_of(transport::OperationKind kind, uint32_t number) const noexcept;
  void send_control(const transport::MessageHeader& message) noexcept;
  void drop(const transport::Payload& payload) noexcept;
  bool is_idle() const noexcept {
    return num_calls_ == 0 && num_told_ == 0 && num_invocations_ == 0 && restless_.empty();
  }
  // Once it has failed and is idle: what only living connections need.
  void give_back() noexcept;
  // Nothing moves or will.
  void on_transport_gone() noexcept;

  RuntimeCore& core_;  // there as long as failure_ is ok
  engine::Engine& engine_;
  FileDescriptor socket_;  // of the handshake, until it fails; taken out of:
  const Identity identity_;
  const transport::PeerId peer_;
  const bool is_neighbour_;
  Status failure_;
  std::optional<Clock::time_point> closes_at_;  // at the latest
  std::optional<uint64_t> ends_after_answers_;  // so many answers of the peer's, which has closed
  bool has_drained_ = false;
  bool watches_socket_ = false;  // peers of this host are watched by the engine
  Clock::time_point next_look_{};
  bool has_hung_up_ = false;

  std::vector<CallSlot> call_slots_;
  std::vector<uint32_t> free_slots_;
  IntrusiveList<Call> awaiting_flags_;  // for what they send
  IntrusiveList<Call> waiting_;         // for a slot
  IntrusiveList<Call> restless_;        // finished, but the transport still has their memory
  size_t num_waiting_ = 0;              // in both
  size_t num_calls_ = 0;                // begun, and not finished
  size_t num_told_ = 0;                 // finished, but the peer has not dealt with them
  uint64_t num_answers_ = 0;            // that have come in whole, or that nobody waits for, ever
  bool tells_deadlines_ = false;        // with each call, since what the peer has not read cannot be taken back
  std::unordered_map<std::string, std::unique_ptr<MailSender>, NameHash, std::equal_to<>> mail_senders_;  // by function
  MailSender* latest_mail_sender_ = nullptr;  // of these: the next message is often for the same
  std::string_view latest_mailbox_;           // its function

  std::vector<PeerCallSlot> peer_call_slots_;
  size_t num_invocations_ = 0;
  uint64_t num_answered_ = 0;  // of the peer's, ever
  DelayGauge delays_;          // of calls that say when they were sent
};

}  // namespace axon::rpc
