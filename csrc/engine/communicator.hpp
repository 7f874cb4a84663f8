// A process group's view of the engine: a team, its inbox and its count of operations. Owned by the caller of form().
// It is cheap: it opens no connection and starts no thread.
//
//   Result<std::unique_ptr<Communicator>> formed = engine.form({.name = …, .rank = …, .addresses = …});
//   communicator->start(operation);            // any thread; returns at once
//   communicator->wait(operation, deadline);   // drives the engine until the operation is finished
//
// The first collective that fails ends all collectives of the group: its result is undefined on every rank. Later ones
// fail with the same reason, and the other ranks are notified. A failed send or receive ends only itself. Sends to and
// receives from a rank that has aborted the group fail.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/published.hpp"
#include "engine/answers.hpp"
#include "engine/device_hook.hpp"
#include "engine/operation.hpp"
#include "messaging/inbox.hpp"
#include "messaging/team.hpp"

namespace axon::collectives {
struct AlgorithmRow;
class AlgorithmOverrides;
}  // namespace axon::collectives

namespace axon::engine {

class Engine;

// The path that this process's messages take to a peer.
struct PeerPath {
  bool same_host = false;  // the peer may share memory with this process
  std::vector<transport::Lane> lanes;
};

// More than 30 methods: operations, failures and deadlines act on one list of running operations and end together. Each
// has a source file of its own.
class Communicator final : public messaging::InboxListener {
 public:
  Communicator(Engine& engine, std::string name, messaging::Team team);
  // Aborts what is still in flight.
  ~Communicator();

  int rank() const noexcept { return team_.rank; }
  int size() const noexcept { return team_.size(); }
  const std::string& name() const noexcept { return name_; }
  // Returns the text with a prefix for error messages: "[rank 1 of group 'tensor'] text".
  std::string signed_text(const std::string& text) const;

  // Starts an operation whose fields are filled in. The operation must live at least until this returns. Never blocks
  // and never fails: a failure becomes the operation's status.
  void start(Operation& operation) noexcept;

  // Drives the engine until the operation is finished (returns true) or the deadline has passed (returns false).
  bool wait(Operation& operation, sync::Clock::time_point deadline) noexcept;

  // For a waiter that gives up before the operation finishes. Returns a timeout that says why it has not finished and
  // names the missing ranks, which are queried for at most 300 ms. The operation goes on. Returns ok if it has ended
  // meanwhile.
  Status explain(Operation& operation) noexcept;

  // Fails all current and future operations, and notifies the other ranks. Waits for no rank; idempotent; any thread.
  void abort(std::string reason) noexcept;

  // Like abort(), but without notifying the other ranks: this rank leaves the group.
  void close() noexcept;

  // From here on the engine notifies the device hook of the group's failure, at once if the group has failed already,
  // and asks the hook for faults. Null detaches the hook; the engine does not call it after this returns.
  void set_device_hook(DeviceHook* device_hook) noexcept;

  // Returns whether the rank's process has proven to be on this host. Any thread.
  bool shares_host(int rank) const noexcept { return team_.shares_host[static_cast<size_t>(rank)]; }

  // Returns the algorithm of a collective on CPU tensors; `num_bytes` as in collectives/selector.hpp.
  const collectives::AlgorithmRow& algorithm_for(transport::OperationKind kind, size_t num_bytes) const noexcept;
  // Returns the user's choices, which are the engine's.
  const collectives::AlgorithmOverrides& overrides() const noexcept;

  // For diagnostics: connects to the rank if nothing has been sent to it yet.
  Result<PeerPath> path_to(int rank);

  // Records that the device hook has launched `kernel` for this operation, for errors and traces. One call at a time.
  void note_launch(const Operation& operation, std::string_view kernel);

  // Returns the number of collectives that this rank has started.
  uint32_t num_started() const noexcept { return num_started_.load(std::memory_order_relaxed); }

  // Returns whether the group has failed, with one relaxed load.
  bool is_broken() const noexcept { return broken_.load(std::memory_order_relaxed); }

  // Returns why the group has failed, or ok if it has not. Returns a copy, since any thread may ask. After a device
  // hook has timed out, queries the other ranks' progress for at most 300 ms.
  Status failure() noexcept;

  // Returns the ranks that have not entered the collective, which may have ended; queries them for at most 300 ms.
  // Empty if the collective never began, or if the ranks cannot be queried any more.
  std::vector<int> missing_from(const Operation& operation);

 private:
  friend class Engine;
  friend class Operation;

  // InboxListener
  void on_control(const transport::MessageHeader& header, const transport::Payload& payload) noexcept override;
  Status on_mismatch(const transport::MessageHeader& theirs, const transport::Fingerprint& ours) noexcept override;
  void on_overflow(Status reason) noexcept override;
  bool has_ended(uint32_t sequence) noexcept override;

  // All methods below: progress owner only.
  void begin(Operation& operation) noexcept;
  void on_run_finished(Operation& operation) noexcept;
  void finish(Operation& operation) noexcept;
  const Status& obstacle(const Operation& operation) const noexcept;

  // Ends the group's collectives: this rank found the failure and notifies the others, or was notified.
  void fail(Status reason) noexcept;
  void fail_quietly(Status reason) noexcept;
  void abort_quietly(const std::string& reason) noexcept;
  void end(Status reason) noexcept;
  void notify_others(transport::OperationKind kind, const Status& reason) noexcept;
  void on_departure(int source, uint32_t num_sent, Status reason) noexcept;
  void on_peer_lost(transport::PeerId peer) noexcept;
  Status loss_of(int rank) const;
  enum class DeviceCheck : uint8_t { kNothing, kFailed, kAsking };
  // Reports whether the device hook has failed the group just now (kFailed), or will after the ranks have answered.
  DeviceCheck check_device_hook() noexcept;
  bool is_asking() const noexcept { return asked_for_fault_at_ && failure_.ok(); }
  // Returns whether the group is closed or aborted, with nothing in flight.
  bool is_finished() const noexcept { return !aborted_.ok() && running_.empty(); }
  void fail_in_fork(Operation& operation) noexcept;
  // Takes the communicator out of the engine, which is shutting down or losing this group.
  void leave() noexcept;

  // Deadlines: when a collective is first found overdue, all ranks are queried. The error names ranks by their answers.
  void tick(sync::Clock::time_point now) noexcept;
  sync::Clock::time_point inquire() noexcept;
  std::string latest_calls();
  std::string last_messages() const;
  static bool is_running(const Operation& operation) noexcept { return operation.task_.has_value(); }
  bool heard_enough(const Operation& operation, sync::Clock::time_point asked_at) const noexcept;
  void time_out(Operation& operation, sync::Clock::time_point asked_at) noexcept;
  Status give_up_waiting(Operation& operation, sync::Clock::time_point asked_at);
  std::string findings(Operation& operation, sync::Clock::time_point asked_at);
  std::string held_back(messaging::Exchange& exchange);

  void trace_begin(const Operation& operation, std::string_view algorithm) const;
  void trace_end(const Operation& operation, const Status& status) const;
  void trace_launch(const CallRecord& call, const collectives::CollectiveArguments& arguments,
                    std::string_view kernel) const;

  void send_control(transport::OperationKind kind, int destination, uint32_t slot, const std::string& text) noexcept;

  Engine& engine_;
  const std::string name_;
  const messaging::Team team_;
  std::optional<messaging::Inbox> inbox_;  // empty after the engine has shut down
  std::atomic<uint32_t> num_started_{0};
  const uint32_t track_;            // in traces
  CallRecord latest_;               // the collective that began last; answers to progress queries carry it
  Published<CallRecord> launched_;  // the device hook's latest collective
  IntrusiveList<Operation> running_;
  Status failure_;                   // of the collectives
  Status aborted_;                   // of everything
  std::atomic<bool> broken_{false};  // one of the two is not ok
  DeviceHook* device_hook_ = nullptr;

  std::optional<sync::Clock::time_point> asked_at_;            // set while a collective is overdue
  std::optional<sync::Clock::time_point> asked_for_fault_at_;  // set after the device hook has timed out
  Answers answers_;
};

}  // namespace axon::engine
