// One call of a function of this process, by a peer.
//
//   runtime.add("add", [](Invocation& invocation) {
//     … invocation.arguments().tensors() …
//     invocation.answer.open();  …  invocation.answer.seal();
//     invocation.reply();                              // exactly one of reply() and fail(), on any thread, whenever
//   });
//
// Belongs to the runtime, which uses it again for later calls: not to be touched after reply() or fail().
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
  // Filled in before reply(). Nobody reads it where no answer is wanted.
  Outbound answer{*this};

  Invocation() = default;
  Invocation(const Invocation&) = delete;
  Invocation& operator=(const Invocation&) = delete;

  std::string_view function() const noexcept { return arguments_.name(); }
  Inbound& arguments() noexcept { return arguments_; }
  const std::shared_ptr<Connection>& connection() const noexcept { return connection_; }
  bool wants_answer() const noexcept { return kind_ == transport::OperationKind::kInvoke; }
  // The caller has given up: the answer will be dropped, so there is no need to begin or go on. Never of what was only
  // told. Any thread.
  bool is_cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed) || is_late(); }
  // By coarse_now(), where handlers only put it into a queue: whoever takes it from there may have to catch up first.
  std::chrono::milliseconds handed_over_at() const noexcept { return handed_over_at_; }
  // Of use to whoever keeps books about it.
  uint64_t serial() const noexcept { return serial_; }

  // Where the arguments go, from the `ask` of a function that has one: either this, once, or fail(). Any thread.
  void accept(std::span<const Buffer> buffers, std::span<Owner> owners = {}) noexcept;

  void reply() noexcept;
  // The caller gets an error of this class: a name of Python's ("ValueError") for doors of Python.
  void fail(std::string_view class_name, std::string_view message) noexcept;
  // The same with an answer of the door's own making, opened with the name of the error's class.
  void reply_failure() noexcept;

 private:
  friend class Connection;
  friend class RuntimeCore;

  enum class Phase : uint8_t { kArriving, kAsking, kCalled, kReplying, kCleared };

  // What it answers with is there.
  struct StartFlagWaiter final : engine::FlagWaiter {
    explicit StartFlagWaiter(Invocation& owner) noexcept : invocation(owner) {}
    Invocation& invocation;
    void on_flag_set() noexcept override { invocation.begin(); }
  };

  void submit(transport::OperationKind answer_kind) noexcept;
  void describe_failure(std::string_view class_name, std::string_view message);
  void fail_here(std::string_view class_name, const std::string& message) noexcept;
  bool is_late() const noexcept { return gives_up_at_ != Clock::time_point::max() && Clock::now() >= gives_up_at_; }
  void fail_as_late() noexcept;
  void begin() noexcept override;
  void complete() noexcept override;
  void on_announced(Inbound&) noexcept override;
  void on_complete(Inbound&) noexcept override;
  void on_broken(Inbound&, Status reason) noexcept override;
  void on_sent() noexcept override;

  // Progress owner only.
  RuntimeCore* core_ = nullptr;
  bool is_held_ = false;                    // a user has it: the core, whose runtime may be gone, stays for it
  std::shared_ptr<Connection> connection_;  // owned with the runtime; stays for the next call, which may be of the same
  Inbound arguments_;
  const Function* handler_ = nullptr;
  uint32_t number_ = 0;
  uint64_t serial_ = 0;
  transport::OperationKind kind_{};
  transport::OperationKind answer_kind_ = transport::OperationKind::kReply;
  Phase phase_ = Phase::kArriving;
  StartFlagWaiter start_flag_waiter_{*this};
  bool has_header_frame_ = false;
  bool comes_late_ = false;  // begun by its caller when the connection was being closed here
  std::string refusal_;      // why it was given up while it was asked where it goes; empty if it was not
  std::atomic<bool> cancelled_{false};
  // Its caller's deadline, as far as that is known: final before it is handed over.
  Clock::time_point gives_up_at_ = Clock::time_point::max();
  std::chrono::milliseconds handed_over_at_{};
};

}  // namespace axon::rpc
