// One call of a function at a peer, from its start until the transport holds none of its memory.
//
// Ownership: reference-counted; the engine holds its own reference while it needs one. After release, a call without
// other references can be used again (reset()), and then allocates nothing. Threads: the caller fills it in and starts
// it; the private part belongs to the progress owner until the call is finished.
//
//   CallPointer call = CallPointer::adopt(*new Call);
//   call->request.open("add");
//   call->request.seal();
//   peer.start(*call);  // never blocks; see Connection
//   if (peer.wait(*call, deadline) && call->status().ok()) use(call->reply().tensors());
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "engine/client.hpp"
#include "rpc/core/inbound.hpp"
#include "rpc/core/outbound.hpp"

namespace axon::rpc {

class Connection;
class MailSender;

class Call : public ListNode<Call>, private engine::Submission, private Inbound::Listener, private Outbound::Listener {
 public:
  enum class Answer : uint8_t {
    kAwaited,
    kNone,  // finished once it is sent; the caller does not learn what becomes of it
  };

  // The caller fills these in.
  Outbound request{*this};
  std::chrono::milliseconds timeout{30'000};
  Answer answer = Answer::kAwaited;
  TensorDestinations destinations = TensorDestinations::kBlocks;  // for the answer's payload frames
  bool is_mail = false;      // a message to a mailbox, see MailSender; the runtime itself reads its answer
  bool awaits_acks = false;  // finished only once the peer has read what the request exposes

  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Final after finished() is true; readable by any thread. If the function itself failed, the status is kRemote and
  // reply() holds the error. The status is set from on_finished() on; before, it is a success.
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  bool has_status() const noexcept { return has_status_.load(std::memory_order_acquire); }
  const Status& status() const noexcept { return has_status() ? status_ : kUnderWay; }
  Inbound& reply() noexcept { return reply_; }
  // Returns whether the transport is done with the call and on_announced() is not running. The memory of the request
  // then belongs to its owner again.
  bool released() const noexcept {
    return released_flag_.load(std::memory_order_acquire) && !is_asking_.load(std::memory_order_acquire);
  }

  // Fails the call in place of starting it, when there is no connection to start it on.
  void fail_unstarted(Status status) noexcept;
  // Prepares the call for another start; allowed only after release.
  void reset() noexcept;

  void retain() noexcept { num_references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (num_references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 protected:
  virtual ~Call() = default;

  // Hooks for derived classes. The thread that drives calls each at most once, in this order, without any lock.
  // on_announced() is called only with TensorDestinations::kAsked and for an answer with tensors. It must lead to
  // Connection::accept or decline soon.
  virtual void on_announced() noexcept {}
  virtual void on_finished() noexcept {}
  virtual void on_released() noexcept { request.clear(); }

 private:
  friend class Connection;
  friend class MailSender;
  friend class RuntimeCore;

  struct DestinationRequest final : engine::Submission {
    explicit DestinationRequest(Call& owner) noexcept : call(owner) {}
    Call& call;
    void begin() noexcept override {}
    void complete() noexcept override;
  };

  // Resumes the call when its start flags are set, so that its data is ready to send.
  struct StartFlagWaiter final : engine::FlagWaiter {
    explicit StartFlagWaiter(Call& owner) noexcept : call(owner) {}
    Call& call;
    void on_flag_set() noexcept override;
  };

  void begin() noexcept override;
  void complete() noexcept override;
  void on_announced(Inbound&) noexcept override;
  void on_complete(Inbound&) noexcept override;
  void on_broken(Inbound&, Status reason) noexcept override;
  void on_sent() noexcept override;
  bool still_exposes() const noexcept { return awaits_acks && !request.at_rest() && request.exposes(); }
  void finish_answered() noexcept;
  bool at_rest() const noexcept { return request.at_rest() && reply_.at_rest(); }

  // Progress owner only, until it is finished.
  std::shared_ptr<Connection>
      connection_;  // the latest; shared with the runtime, which may be destroyed before the call
  Inbound reply_;
  DestinationRequest destination_request_{*this};
  StartFlagWaiter start_flag_waiter_{*this};
  uint32_t number_ = 0;
  MailSender* mail_sender_ = nullptr;  // until it is finished
  int64_t turn_ = -1;                  // number among its sender's messages; −1: not assigned yet
  bool begun_ = false;
  bool at_peer_ = false;      // it has a call number at the peer
  bool answered_ = false;     // at least the header frame has arrived
  bool is_exposing_ = false;  // the answer is complete, and the peer still reads what the request exposes
  bool failed_there_ = false;
  bool given_up_ = false;         // cancelled before it was begun
  bool is_final_ = false;         // status_ does not change any more
  Clock::time_point deadline_{};  // set by the first tick, so that quicker calls never read the clock
  Status status_;
  bool resting_ = false;  // the transport is done with it; set before it is queued for completion
  inline static const Status kUnderWay{};
  sync::atomic<bool> has_status_{false};
  sync::atomic<bool> finished_{false};
  sync::atomic<bool> released_flag_{false};
  sync::atomic<bool> is_asking_{false};  // on_announced() is about to be called, or running
  sync::atomic<uint32_t> num_references_{1};
};

// Holds a reference to a call or to an object of a derived class.
template <typename T>
class Counted {
 public:
  Counted() noexcept = default;
  // Takes over a reference.
  explicit Counted(T* object) noexcept : object_(object) {}
  static Counted adopt(T& object) noexcept { return Counted(&object); }
  static Counted share(T& object) noexcept {
    object.retain();
    return Counted(&object);
  }
  Counted(const Counted& other) noexcept : object_(other.object_) {
    if (object_ != nullptr) object_->retain();
  }
  Counted(Counted&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Counted& operator=(Counted other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Counted() {
    if (object_ != nullptr) object_->release();
  }

  T* get() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  T* operator->() const noexcept { return object_; }

 private:
  T* object_ = nullptr;
};

using CallPointer = Counted<Call>;

}  // namespace axon::rpc
