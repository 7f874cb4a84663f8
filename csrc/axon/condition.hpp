// Conditions start transfers, and tell that they have finished, without a call for each of them. Threads, CUDA streams,
// nodes of CUDA graphs and kernels set conditions, and wait for them.
//
//   axon::Condition filled = runtime.condition().value();
//   axon::Condition sent = runtime.condition().value();
//   axon::TriggeredTransfer sending = plan.post_when(filled, local_ids, remote_ids, {.then = sent}).value();
//   for (;;) {
//     fill(buffer);
//     filled.set();                      // starts the transfer
//     if (!sent.wait(1s)) return sent.status();
//   }
//
// A condition counts: it is not lost if it is set again before the first time was noticed. axon/condition.cuh lets a
// device set conditions and wait for them. docs/one_sided.md says what is promised.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/condition_counts.hpp"
#include "base/status.hpp"
#include "memory/owner.hpp"

namespace axon::engine {
class Condition;
}  // namespace axon::engine

namespace axon::rpc {
class TriggeredTransfer;
}  // namespace axon::rpc

namespace axon::library {

/// Something that happens again and again. Copies are of the same condition. Any thread may use it, except that one
/// thread at a time waits for it.
class Condition {
 public:
  // For the library itself.
  explicit Condition(std::shared_ptr<engine::Condition> state) noexcept : state_(std::move(state)) {}
  Condition(const Condition& other) noexcept = default;  // moving copies, so that none is empty
  Condition& operator=(const Condition& other) noexcept = default;
  /// For the library itself.
  const std::shared_ptr<engine::Condition>& state() const noexcept { return state_; }

  /// Says that it has happened once more. What the thread has written before is visible to all that wait.
  void set() noexcept;
  /// Waits until it has been set once more than waits have returned true.
  /// @param timeout the longest wait
  /// @return whether it was set; false after the timeout, and if it will not be set any more (see status())
  bool wait(std::chrono::milliseconds timeout) noexcept;
  /// @return how often it has been set; the count wraps around after 4,294,967,295
  uint32_t num_set() const noexcept;
  /// @return why it is not set any more: the status of the transfer that failed; or kTimeout, if a kernel has waited
  /// for
  ///   as long as it may
  Status status() const;

  /// For axon/condition.cuh.
  ConditionCounts* counts() const noexcept;
  /// For axon/condition.cuh: kernels may set the condition from now on.
  void attach_device() const noexcept;
  /// For axon/condition.cuh: no kernel sets the condition any more.
  void detach_device() const noexcept;
  /// For axon/condition.cuh: the argument of expect().
  void* engine() const noexcept;
  /// For axon/condition.cuh, on any thread: kernels that may set conditions are about to run.
  static void expect(void* engine) noexcept;

 private:
  std::shared_ptr<engine::Condition> state_;  // shared with transfers and copies
};

/// How triggered transfers are made.
struct TriggerOptions {
  std::optional<Condition> then{};            ///< set after each transfer that has succeeded
  std::optional<std::string> notification{};  ///< sent after each transfer, as TransferOptions says
  std::chrono::milliseconds timeout{30'000};  ///< of each transfer, from its start
  Owner owner{};                              ///< of local memory; kept until the series is destroyed and released
};

/// A series of transfers, as Plan::post_when returns it. One thread at a time may use it. Its destruction closes it.
class TriggeredTransfer {
 public:
  // For the library itself.
  explicit TriggeredTransfer(std::shared_ptr<rpc::TriggeredTransfer> state) noexcept : state_(std::move(state)) {}
  TriggeredTransfer(TriggeredTransfer&& other) noexcept = default;
  TriggeredTransfer& operator=(TriggeredTransfer&& other) noexcept;
  ~TriggeredTransfer();

  /// @return how many transfers have succeeded
  uint64_t num_finished() const noexcept;
  /// @return the status of the transfer that has failed. None starts after it, and `then` is not set any more.
  Status status() const;
  /// From here on no transfer starts. One that is under way is cancelled, and `then` is not set any more in this case.
  void close() noexcept;
  /// @return after close(): whether nothing moves to or from local memory any more
  bool released() const noexcept;

 private:
  std::shared_ptr<rpc::TriggeredTransfer> state_;  // shared with the transfer that is under way
};

}  // namespace axon::library
