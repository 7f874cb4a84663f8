// One call of a user: a collective, a send or a receive, from its start until no transfer of it is in progress.
//
// A user of the engine derives from it, fills in its specification, and passes it to Communicator::start. From then on
// the group reads the fields and refers to the object until on_released(), which is its last access. The memory that
// the arguments point to must live as long.
//
//   started ──► on_finished() ──► finished (wait() returns) ──► on_released() (no transfer touches its memory)
//
// Usually the last three coincide. Only an operation that failed with data in flight is released later than finished.
#pragma once

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/intrusive_list.hpp"
#include "base/status.hpp"
#include "base/task.hpp"
#include "collectives/collective.hpp"
#include "engine/call_record.hpp"
#include "engine/client.hpp"
#include "engine/progress.hpp"
#include "engine/segmented_exchange.hpp"
#include "messaging/view.hpp"

namespace axon::engine {

class Engine;
class Group;
class ResultCheck;

// The fields of an operation that its user fills in. The spans in `arguments` and the strings must stay valid until
// on_released().
struct OperationSpecification {
  collectives::CollectiveArguments
      arguments;  // point to point: kind = kPointToPoint, inputs[0] (send) or outputs[0] (receive)
  Direction direction = Direction::kCollective;
  int peer = -1;     // point to point: the other rank; −1 receives from any rank
  uint32_t tag = 0;  // point to point
  // A count on which all ranks must agree: the elements of the tensor, or of all ranks' together. 0 where sizes may
  // differ by rank.
  uint64_t num_elements = 0;
  Shape shape;
  std::string_view call_site;  // the line of the program that calls, or empty; the text is never freed
  std::chrono::milliseconds timeout{0};
  Replay replay;  // if a CUDA graph holds the call
  // Optional: the arguments are in a device's memory, and these segments of host memory take their place. They must
  // live until on_released(). `scope` is that of a collective.
  DeviceSegments* device_segments = nullptr;
  Scope scope = Scope::kEveryone;
};

// More than 30 methods: its user, its group and the engine's queues each call some, and few concern two of them.
class Operation : public OperationSpecification,
                  public ListNode<Operation>,
                  public ListNode<Operation, struct Unposted>,
                  public Submission {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Final after finished() is true; readable by any thread.
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  const Status& status() const noexcept { return status_; }
  // The rank that sent the message, after a receive from any rank.
  int source() const noexcept { return source_; }
  // The group's count of collectives, from 1; 0 for point to point and for replays.
  uint32_t sequence() const noexcept { return sequence_; }

  sync::Clock::time_point called_at() const noexcept { return called_at_; }
  // The number of the thread that waits for it, or 0.
  uint32_t waiter() const noexcept { return static_cast<uint32_t>(waiter_.load(std::memory_order_relaxed)); }
  // The same thread's id in the kernel, or 0.
  uint32_t kernel_waiter() const noexcept {
    return static_cast<uint32_t>(waiter_.load(std::memory_order_relaxed) >> 32);
  }
  // For its communicator, on the thread that begins or ends to wait.
  void set_waiter(uint32_t thread, uint32_t kernel_thread) noexcept {
    waiter_.store(uint64_t{kernel_thread} << 32 | thread, std::memory_order_relaxed);
  }
  // Its place on the status page (engine/status_page.hpp). Progress owner only.
  uint64_t status_token() const noexcept { return status_token_; }
  void set_status_token(uint64_t token) noexcept { status_token_ = token; }

  // Returns what errors and traces need to describe the operation after it is gone.
  CallRecord record() const;
  // "all_reduce #5 (float32[4, 256], SUM)"
  std::string describe() const { return record().describe(); }
  size_t num_segments() const noexcept { return device_segments == nullptr ? 1 : device_segments->count(); }
  // Bits beside an algorithm's number in a fingerprint, which say how a collective is divided. All ranks must divide it
  // alike.
  static constexpr uint8_t kSegments = 0x80;
  static constexpr uint8_t kColumns = 0x40;
  uint8_t division() const noexcept;
  // Returns the fingerprint that each of its messages carries: the user's call and the algorithm.
  transport::Fingerprint fingerprint(uint8_t algorithm) const noexcept;

  // For its communicator, any thread: called before the operation is submitted to the engine.
  void join(Group& group) noexcept;
  // True once finished() is. For Engine::wait().
  const sync::atomic<bool>& finished_flag() const noexcept { return finished_; }
  // For its communicator, in a forked child: ends the operation without the engine. What its parent had in flight is
  // never released here, but an operation that the child itself starts is.
  void fail_in_fork(Status failure) noexcept;
  void fail_unstarted(Status failure) noexcept;

  // For its group, as are all functions below. Progress owner only.
  void number(uint32_t sequence, collectives::Algorithm algorithm) noexcept;
  // Makes the exchange of the operation's messages, then runs it.
  void open(messaging::Messenger& messenger, messaging::Inbox& inbox, const transport::Fingerprint& fingerprint);
  void run(Engine& engine) noexcept;
  // A send that must not go out yet waits for its turn once it runs. note_posted() says that the first part of its own
  // message has gone out.
  void wait_for_turn() noexcept { waits_for_turn_ = true; }
  void take_turn() noexcept;
  void note_posted() noexcept;
  // Returns whether the operation has been run and has not ended.
  bool is_running() const noexcept { return task_.has_value(); }
  // Returns whether it waits for nothing but its device, whose turn it is with the memory.
  bool awaits_device() const noexcept {
    return segmented_exchange_ && segmented_exchange_->awaits_device() && exchange_->is_idle();
  }
  bool is_overdue(sync::Clock::time_point now) const noexcept { return now >= deadline_; }
  // The operation must be running.
  messaging::Exchange& exchange() noexcept { return *exchange_; }
  // Ends a running operation with this reason.
  void fail(Status reason) noexcept;
  // Returns the outcome of an operation that has run to its end, and destroys its coroutine.
  Status take_outcome() noexcept;
  // Its status is final. Returns whether it is also released: no transfer is in progress.
  bool end(Status status) noexcept;
  // The following two are for an operation that end() has not released.
  bool is_at_rest() const noexcept { return exchange_->at_rest(); }
  // Called once no transfer touches its memory. Returns whether it must be completed once more; if not, its completion
  // is still to come.
  bool release() noexcept;

 protected:
  virtual ~Operation() = default;

  // Called once each, in this order, by the thread that drives, without any lock: may start and await other operations.
  // In on_finished() status() is already final; finished() turns true after it.
  virtual void on_finished() noexcept {}
  virtual void on_released() noexcept = 0;

 private:
  friend struct Task<Status>::promise_type;

  void begin() noexcept override;
  void finish() noexcept override;
  void complete() noexcept override;

  using UnpostedSend = ListNode<Operation, Unposted>;

  struct Turn {
    Operation& operation;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> waiter) const noexcept { operation.turn_.set_waiter(waiter); }
    void await_resume() const noexcept {}
  };

  // Runs the operation's whole exchange of messages.
  Task<Status> exchange_messages();
  Task<Status> exchange_segments();
  bool is_segmented() const noexcept;
  SizeClassPool& size_class_pool() noexcept { return exchange_->size_class_pool(); }

  Group* group_ = nullptr;
  std::shared_ptr<ResultCheck> result_check_;  // null unless its result is checked
  collectives::Algorithm algorithm_ = nullptr;
  uint32_t sequence_ = 0;
  sync::Clock::time_point called_at_{};
  sync::Clock::time_point deadline_{};
  messaging::Wakeable turn_;
  bool waits_for_turn_ = false;
  std::optional<messaging::Exchange> exchange_;
  std::optional<SegmentedExchange> segmented_exchange_;  // of a device, or of a long message
  std::optional<Task<Status>> task_;
  Status status_;
  int source_ = -1;
  std::atomic<uint64_t> waiter_{0};  // publishes no other data
  uint64_t status_token_ = 0;
  bool released_at_end_ = false;        // no transfer was in progress; set before it is queued for completion
  sync::atomic<bool> finished_{false};  // release after on_finished(), acquire by waiters
  std::atomic<bool> is_half_over_{
      false};  // if it is released after its end: set by the first of completion and release
};

}  // namespace axon::engine
