// One call of a function at a peer, from its start until nothing of it moves any more.
//
//   CallPointer call = CallPointer::adopt(*new Call);
//   call->request.open("add");  …  call->request.seal();
//   peer.start(*call);                                            // never blocks; see Connection
//   if (peer.wait(*call, deadline) && call->status().ok()) … call->reply().tensors() …
//
// The engine holds a reference of its own while it needs one. Once released, a call that nobody else holds may be used
// again (reset()), and then allocates nothing.
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
    kNone,  // finished once it is sent; nobody hears what becomes of it
  };

  // Filled in by the caller.
  Outbound request{*this};
  std::chrono::milliseconds timeout{30'000};
  Answer answer = Answer::kAwaited;
  TensorDestinations destinations = TensorDestinations::kBlocks;  // of the answer's payload frames
  bool is_mail = false;      // a message to a mailbox, see MailSender; its answer is the runtime's own
  bool awaits_acks = false;  // finished only once the peer has read what the request exposes

  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Final after finished() is true; readable by any thread. A failure that the function itself answered with is
  // kRemote, and reply() holds what it says of it. From on_finished() on; before, the status is a success.
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  bool has_status() const noexcept { return has_status_.load(std::memory_order_acquire); }
  const Status& status() const noexcept { return has_status() ? status_ : kUnderWay; }
  Inbound& reply() noexcept { return reply_; }
  // Nothing of it moves, and nobody is asked: the memory of the request is its owner's again.
  bool released() const noexcept {
    return released_flag_.load(std::memory_order_acquire) && !is_asking_.load(std::memory_order_acquire);
  }

  // In place of a start: there is nobody to call.
  void fail_unstarted(Status status) noexcept;
  // For another start; once released.
  void reset() noexcept;

  void retain() noexcept { num_references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (num_references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 protected:
  virtual ~Call() = default;

  // Called at most once each, in this order, by whichever thread drives, without any lock. The first is called with
  // TensorDestinations::kAsked and an answer with tensors alone, and has Connection::accept or decline follow, soon.
  virtual void on_announced() noexcept {}
  virtual void on_finished() noexcept {}
  virtual void on_released() noexcept { request.clear(); }

 private:
  friend class Connection;
  friend class MailSender;
  friend class RuntimeCore;

  struct Announcement final : engine::Submission {
    explicit Announcement(Call& owner) noexcept : call(owner) {}
    Call& call;
    void begin() noexcept override {}
    void complete() noexcept override;
  };

  // What is sent is there.
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
  std::shared_ptr<Connection> connection_;  // the latest; owned with the runtime, which may be gone before
  Inbound reply_;
  Announcement announcement_{*this};
  StartFlagWaiter start_flag_waiter_{*this};
  uint32_t number_ = 0;
  MailSender* mail_sender_ = nullptr;  // until it is finished
  int64_t turn_ = -1;                  // among its sender's messages; −1: it waits for one
  bool begun_ = false;
  bool at_peer_ = false;      // it has a number
  bool answered_ = false;     // at least the header frame has come
  bool is_exposing_ = false;  // the answer is complete, and the peer still reads what the request exposes
  bool failed_there_ = false;
  bool given_up_ = false;         // before it was begun
  bool is_final_ = false;         // its status is final
  Clock::time_point deadline_{};  // as the first tick sets it: quicker calls need no clock
  Status status_;
  bool resting_ = false;  // nothing moves any more; set before it is queued for completion
  inline static const Status kUnderWay{};
  sync::atomic<bool> has_status_{false};
  sync::atomic<bool> finished_{false};
  sync::atomic<bool> released_flag_{false};
  sync::atomic<bool> is_asking_{false};  // on_announced() is to be called, or running
  sync::atomic<uint32_t> num_references_{1};
};

// Holds a reference to a call, or to what derives from it.
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
