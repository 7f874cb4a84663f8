// Transfers of the blocks of a plan, each of which starts when a condition is set once more, and sets another condition
// when it has finished. They run one after the other: a condition that is set during a transfer starts the next one
// after it. The first one that fails ends the series and the other condition, as does the end of the first condition.
//
//   auto triggered = std::make_shared<TriggeredTransfer>(Transfer::Kind::kWrite, connection, plan, options);
//   triggered->open();
//   …
//   triggered->close();     // from here on, none starts
//
// Any thread but the progress owner, unless a method says otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/condition.hpp"
#include "rpc/core/call.hpp"
#include "rpc/core/one_sided/transfer_plan.hpp"

namespace axon::rpc {

class TriggeredTransfer final : public std::enable_shared_from_this<TriggeredTransfer>,
                                private engine::ConditionListener,
                                private engine::Submission {
 public:
  struct Options {
    std::shared_ptr<engine::Condition> begin;
    std::shared_ptr<engine::Condition> then;  // may be null
    std::vector<int32_t> local_ids;           // checked by the plan, as the next ones
    std::vector<int32_t> remote_ids;
    std::optional<std::string> notification;
    std::chrono::milliseconds timeout{};
    Owner owner;  // of local memory
  };

  TriggeredTransfer(Transfer::Kind kind, std::shared_ptr<Connection> connection,
                    std::shared_ptr<const TransferPlan> plan, Options options) noexcept;

  void open() noexcept;
  // Cancels the transfer that is under way, which ends the other condition.
  void close() noexcept;
  // Returns whether nothing moves to or from local memory any more. Final after close().
  bool released() const noexcept { return num_runs_.load(std::memory_order_acquire) == 0; }
  uint64_t num_finished() const noexcept { return num_finished_.load(std::memory_order_acquire); }
  // Returns the status of the transfer that has failed.
  Status status() const;

  engine::Engine& engine() const noexcept { return options_.begin->engine(); }

 private:
  class Run;
  class DroppedShare;

  void start_next() noexcept;             // progress owner
  void fail(const Status& why) noexcept;  // any thread
  void on_finished(const Status& status) noexcept;

  // ConditionListener
  void on_set() noexcept override { start_next(); }
  // Submission: a transfer has finished.
  void begin() noexcept override;
  void complete() noexcept override {}

  const Transfer::Kind kind_;
  const std::shared_ptr<Connection> connection_;  // shared with the runtime, which may be closed first
  const std::shared_ptr<const TransferPlan> plan_;
  const Options options_;

  // Progress owner only.
  uint32_t num_started_ = 0;
  bool is_open_ = false;
  Counted<Transfer> run_;                    // the transfer that is under way
  std::shared_ptr<TriggeredTransfer> self_;  // held until begin(), as long as one is under way

  sync::atomic<bool> has_failed_{false};
  sync::atomic<uint32_t> num_runs_{0};  // that have not been destroyed
  sync::atomic<uint64_t> num_finished_{0};
  mutable std::mutex mutex_;
  Status status_;  // guarded by mutex_
};

}  // namespace axon::rpc
