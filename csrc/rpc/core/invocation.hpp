// One call from a peer of a function of this process.
//
//   runtime.add("add", [](Invocation& invocation) {
//     use(invocation.arguments().tensors());
//     invocation.answer.open();
//     invocation.answer.seal();
//     invocation.reply();  // exactly one of reply() and fail(), on any thread, at any time
//   });
//
// Ownership: belongs to the runtime, which reuses it for later calls. Do not touch it after reply() or fail().
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "engine/client.hpp"
#include "rpc/core/inbound.hpp"
#include "rpc/core/outbound.hpp"

namespace axon::rpc {

class Connection;
class RuntimeCore;
struct Function;

class Invocation final : public ListNode<Invocation>,
                         private engine::Submission,
                         private Inbound::Listener,
                         private Outbound::Listener {
 public:
  // Filled in before reply(). It is not read if the caller wants no answer.
  Outbound answer{*this};

  Invocation() = default;
  Invocation(const Invocation&) = delete;
  Invocation& operator=(const Invocation&) = delete;

  std::string_view function() const noexcept { return arguments_.name(); }
  Inbound& arguments() noexcept { return arguments_; }
  const std::shared_ptr<Connection>& connection() const noexcept { return connection_; }
  bool wants_answer() const noexcept { return kind_ == transport::MessageKind::kInvoke; }
  // Returns whether the caller's deadline has passed. Any thread.
  bool is_late() const noexcept { return gives_up_at_ != Clock::time_point::max() && Clock::now() >= gives_up_at_; }
  // Returns whether the caller has given up. Its answer will be dropped, so there is no need to begin or continue.
  // Always false for one-way calls. Any thread.
  bool is_cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed) || is_late(); }
  // Time by coarse_now() for handlers that only queue the invocation: the thread that dequeues it may be late.
  std::chrono::milliseconds handed_over_at() const noexcept { return handed_over_at_; }
  // Identifies the invocation in logs and tables.
  uint64_t serial() const noexcept { return serial_; }

  // Sets where the arguments go. A function with an `ask` handler calls either this, once, or fail(). Any thread.
  void accept(std::span<const Buffer> buffers, std::span<Owner> owners = {}) noexcept;

  void reply() noexcept;
  // The caller gets an error of this class; Python clients use the name of a Python class ("ValueError").
  void fail(std::string_view class_name, std::string_view message) noexcept;
  // As fail(), but with an answer that the client has written; it begins with the name of the error's class.
  void reply_failure() noexcept;
  // Fails a call that its caller gave up, or whose function was cancelled. After the deadline that is a TimeoutError,
  // since it may arrive before the caller's own timeout. What a cancelled function says goes into the text.
  void fail_as_given_up(std::string_view why = {}) noexcept;

 private:
  friend class Connection;
  friend class RuntimeCore;

  enum class Phase : uint8_t { kArriving, kAsking, kCalled, kReplying, kCleared };

  // Resumes the answer when its start flags are set, so that its data is ready to send.
  struct StartFlagWaiter final : engine::FlagWaiter {
    explicit StartFlagWaiter(Invocation& owner) noexcept : invocation(owner) {}
    Invocation& invocation;
    void on_flag_set() noexcept override { invocation.begin(); }
  };

  void submit(transport::MessageKind answer_kind) noexcept;
  void describe_failure(std::string_view class_name, std::string_view message);
  void fail_here(std::string_view class_name, const std::string& message) noexcept;
  void begin() noexcept override;
  void complete() noexcept override;
  void on_announced(Inbound&) noexcept override;
  void on_complete(Inbound&) noexcept override;
  void on_broken(Inbound&, Status reason) noexcept override;
  void on_sent() noexcept override;

  // Progress owner only.
  RuntimeCore* core_ = nullptr;
  bool is_held_ = false;  // a user has it, so the core outlives its runtime until it is released
  std::shared_ptr<Connection>
      connection_;  // shared with the runtime; kept for the next call, which is often from the same peer
  Inbound arguments_;
  const Function* handler_ = nullptr;
  uint32_t number_ = 0;
  uint64_t serial_ = 0;
  transport::MessageKind kind_{};
  transport::MessageKind answer_kind_ = transport::MessageKind::kReply;
  Phase phase_ = Phase::kArriving;
  StartFlagWaiter start_flag_waiter_{*this};
  bool has_header_frame_ = false;
  bool comes_late_ = false;  // its caller began it while the connection was being closed here
  std::string refusal_;      // why it was refused during on_announced(); empty if it was not
  std::atomic<bool> cancelled_{false};
  // Its caller's deadline, if known; final before the invocation is handed over.
  Clock::time_point gives_up_at_ = Clock::time_point::max();
  std::chrono::milliseconds handed_over_at_{};
};

}  // namespace axon::rpc
