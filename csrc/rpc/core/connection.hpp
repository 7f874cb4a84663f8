// Connects this runtime with another runtime (or with itself) for calls in both directions.
//
// Ownership: shared by the runtime, users' handles and calls under way. Threads: start(), wait() and the other public
// functions are for any thread; everything private belongs to the progress owner.
//
//   connection->start(call);  // never blocks: what cannot be sent yet is queued, up to a bound
//   connection->wait(call, deadline);
//
// A call occupies one of kWindow slots until the peer has answered it, even if its caller no longer waits. So the
// callee never has more than kWindow calls of one connection, and the slot tells which call an answer belongs to.
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
#include "rpc/core/mailboxes/mail_sender.hpp"
#include "rpc/core/one_sided/one_sided.hpp"

namespace axon::rpc {

class RuntimeCore;

// Looks up names without copying them.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const noexcept { return std::hash<std::string_view>()(name); }
};

// Identifies the other end of a connection.
struct Identity {
  std::string name;             // of the other runtime
  uint64_t incarnation = 0;     // of the other runtime; a restarted one has another
  engine::PeerAddress address;  // of the other runtime's process
  uint64_t peer_key = 0;        // the key in messages to the peer
  uint64_t own_key = 0;         // the key in messages from the peer
  FileDescriptor socket{};      // of the handshake: hangs up when the other end's host is gone; invalid in tests
};

// More than 30 methods: the calls of both directions share the peer, its loss and the way in which the connection
// closes. Each direction has a source file of its own.
class Connection final : public std::enable_shared_from_this<Connection>, private messaging::Addressee {
 public:
  static constexpr uint32_t kWindow = 1024;

  Connection(RuntimeCore& core, engine::Engine& engine, Identity identity, transport::PeerId peer);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const Identity& identity() const noexcept { return identity_; }
  engine::Engine& engine() const noexcept { return engine_; }
  transport::PeerId peer() const noexcept { return peer_; }

  void start(Call& call) noexcept;
  bool wait(Call& call, Clock::time_point deadline, Clock::duration spin_budget = pace::kSpinBudget) noexcept;
  // Fails the call with kCancelled unless it is finished, and tells the callee.
  void cancel(Call& call) noexcept;
  // Sets where the tensors of an answer go, after Call::on_announced; see Inbound::accept.
  void accept(Call& call, std::span<const Buffer> buffers, std::span<Owner> owners = {}) noexcept;
  // Rejects the tensors of an answer: the call fails with `reason`.
  void decline(Call& call, Status reason) noexcept;
  // Accepts no more calls in either direction. Ends once the calls under way are done, or at the deadline; then the
  // peer is told. Calls started before count as under way. Never blocks; the earliest deadline counts.
  void close(Clock::time_point deadline) noexcept;
  // Drives until the connection has ended, no matter which side ended it. Returns false at the deadline.
  bool await_end(Clock::time_point deadline) noexcept;
  // Returns whether nothing was under way when the connection ended.
  bool has_drained() noexcept;
  // Returns why no call can be started any more, or ok. While the connection closes, calls under way continue.
  Status failure() noexcept;
  // Returns whether calls can begin here and at the peer, as far as this process can know at once.
  bool is_live() noexcept;
  // Returns whether the connection has ended and nothing continues.
  bool has_ended() noexcept;
  // Returns whether the peer is another process on this host.
  bool is_neighbour() const noexcept { return is_neighbour_; }

  OneSided& one_sided() noexcept { return one_sided_; }
  // Returns why no call or transfer can begin here, or ok. Progress owner only.
  Status why_nothing_begins() const;

  // State of a client that exposes and reads tensors.
  struct ZeroCopyState {
    std::atomic<uint64_t> gpus_read_by_peer{0};  // GPUs of this process, one bit each
    // `told_from` is when to tell the peer which of its GPUs this process reads; max once the peer was told. `gpu` is
    // the GPU of this process on which tensors had arrived by then; −1 if the peer was never told.
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

  // A call of this end that the peer has. It may have ended here before the peer answers.
  struct CallSlot {
    Call* call = nullptr;
    uint32_t number = 0;  // number of the latest call in this slot
    bool taken = false;
    bool is_told = false;  // a one-way call that has been sent
    // For a mailbox message that has ended here: the sender that needs the peer's answer.
    MailSender* mail_sender = nullptr;
  };
  // A call from the peer.
  struct PeerCallSlot {
    Invocation* invocation = nullptr;
    uint32_t number = 0;
  };

  static uint32_t slot_of(uint32_t number) noexcept { return number % kWindow; }

  void on_message(const transport::CallHeader& header, const transport::Payload& payload) noexcept override;
  void on_message(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept override {
    one_sided_.on_message(header, payload);
  }

  // Caller
  void begin(Call& call) noexcept;
  // Sends the call, or waits for its start flags.
  void leave(Call& call) noexcept;
  void open(Call& call) noexcept;
  MailSender& mail_sender_of(std::string_view function);
  bool may_call() const noexcept { return failure_.ok() && !ends_after_answers_; }
  bool has_room(Call& call) noexcept;
  bool has_slot_for(const Call& call) const noexcept;
  void take_slot(Call& call) noexcept;
  static void stamp(transport::CallHeader& header, const Call& call) noexcept;
  void launch(Call& call) noexcept;
  void launch_waiting() noexcept;
  void on_answer(const transport::CallHeader& header, const transport::Payload& payload) noexcept;
  void on_answer_payload(const transport::CallHeader& header, const transport::Payload& payload) noexcept;
  void finish(Call& call, Status status) noexcept;
  void free_slot(uint32_t number) noexcept;
  void release_slot(Call& call) noexcept;
  void on_late_answer(CallSlot& slot, const transport::CallHeader& header, const transport::Payload& payload) noexcept;
  // Ends the call with `why`, and tells the callee that it need not begin or continue.
  void give_up(Call& call, Status why) noexcept;
  // Applies the action to all calls that have not been sent.
  template <typename Action>
  void for_each_waiting(Action action) noexcept;
  void end_waiting(const Status& reason) noexcept;

  // Callee
  void on_call(const transport::CallHeader& header, const transport::Payload& payload) noexcept;
  void on_cancel(const transport::CallHeader& header) noexcept;
  void on_withdrawn(const transport::CallHeader& header) noexcept;
  void note_deadline(Invocation& invocation, const transport::CallHeader& header) noexcept;
  Invocation* invocation_for(const transport::CallHeader& header) noexcept;
  void answer(Invocation& invocation) noexcept;

  void tick(Clock::time_point now) noexcept;
  // Returns whether the peer has closed the socket of the handshake, as it does when the connection ends there.
  bool has_peer_hung_up() const noexcept;
  void release_rested() noexcept;
  void begin_closing(Clock::time_point deadline) noexcept;
  void on_close(const transport::CallHeader& header) noexcept;
  void look_after_closing(Clock::time_point now) noexcept;
  // Returns whether one of the two ends is closing the connection and waits for calls under way.
  bool is_closing() const noexcept { return (closes_at_ || ends_after_answers_) && failure_.ok(); }
  Status closed_here() const;
  Status closed_there() const;
  // Ends everything, and tells the peer.
  void end(const Status& reason) noexcept;
  // Tells the peer, once devices of this process no longer use its memory.
  void send_delayed_close() noexcept;
  // Ends everything, without telling the peer.
  void fail(const Status& reason) noexcept;
  transport::CallHeader header_of(transport::MessageKind kind, uint32_t number) const noexcept;
  void send_control(const transport::CallHeader& message) noexcept;
  void drop(const transport::Payload& payload) noexcept;
  bool is_idle() const noexcept {
    return num_calls_ == 0 && num_told_ == 0 && num_invocations_ == 0 && restless_.empty() && !delayed_close_ &&
           one_sided_.is_idle();
  }
  // Frees what only a live connection needs, after it has failed and is idle.
  void give_back() noexcept;
  // Ends all transfers after the transport is gone.
  void on_transport_gone() noexcept;

  RuntimeCore& core_;  // valid while failure_ is ok
  engine::Engine& engine_;
  FileDescriptor socket_;  // of the handshake, until the connection fails; moved out of the identity:
  const Identity identity_;
  const transport::PeerId peer_;
  const bool is_neighbour_;
  Status failure_;
  std::atomic<bool> is_closed_here_{false};
  std::optional<Clock::time_point> closes_at_;  // the deadline
  std::optional<uint64_t>
      ends_after_answers_;  // the number of the peer's answers after which it ends, because the peer has closed
  bool has_drained_ = false;
  std::optional<transport::CallHeader> delayed_close_;
  bool watches_socket_ = false;  // false for peers on this host, which the engine watches
  Clock::time_point next_look_{};
  bool has_hung_up_ = false;

  std::vector<CallSlot> call_slots_;
  std::vector<uint32_t> free_slots_;
  IntrusiveList<Call> awaiting_flags_;  // calls that wait for their start flags
  IntrusiveList<Call> waiting_;         // calls that wait for a slot
  IntrusiveList<Call> restless_;        // finished, but the transport still uses their memory
  size_t num_waiting_ = 0;              // in awaiting_flags_ and waiting_
  size_t num_calls_ = 0;                // begun, but not finished
  size_t num_told_ = 0;                 // finished one-way calls that the peer has not handled yet
  uint64_t num_answers_ = 0;            // answers received completely or no longer awaited, since the start
  bool tells_deadlines_ = false;        // each call carries its deadline, because a sent message cannot be withdrawn
  std::unordered_map<std::string, std::unique_ptr<MailSender>, NameHash, std::equal_to<>> mail_senders_;  // by function
  MailSender* latest_mail_sender_ = nullptr;  // a cache: the next message is often for the same mailbox
  std::string_view latest_mailbox_;           // the function of latest_mail_sender_

  OneSided one_sided_;

  std::vector<PeerCallSlot> peer_call_slots_;
  size_t num_invocations_ = 0;
  uint64_t num_answered_ = 0;  // calls of the peer answered since the start
  DelayGauge delays_;          // of calls that carry their send time
};

}  // namespace axon::rpc
