// A process group's view on the engine: a team, its inbox and its count of operations. Cheap: no connection, no thread.
//
//   Result<std::unique_ptr<Communicator>> formed = engine.form({.name = …, .rank = …, .addresses = …});
//   communicator->start(operation);              // any thread; returns at once
//   communicator->wait(operation, deadline);     // drives the engine until it is finished
//
// The first collective that fails ends all collectives of the group: what it left behind is undefined on every rank, so
// later ones fail with the same reason, and the other ranks are told. A failed send or receive ends only itself; those
// with a rank that has aborted the group fail.
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

namespace axon::engine {

class Engine;

// How this process's messages reach a peer.
struct PeerPath {
  bool same_host = false;  // may share memory with it
  std::vector<transport::Lane> lanes;
};

class Communicator final : public messaging::InboxListener {
 public:
  Communicator(Engine& engine, std::string name, messaging::Team team);
  // Aborts what is still in flight.
  ~Communicator();

  int rank() const noexcept { return team_.rank; }
  int size() const noexcept { return team_.size(); }
  const std::string& name() const noexcept { return name_; }
  // For messages: "[rank 1 of group 'tensor'] text".
  std::string signed_text(const std::string& text) const;

  // Starts an operation whose fields are filled in, and which lives at least until this returns. Never blocks, never
  // fails: a failure is the operation's status.
  void start(Operation& operation) noexcept;

  // Returns once the operation is finished (true) or the deadline has passed (false), driving the engine meanwhile.
  bool wait(Operation& operation, sync::Clock::time_point deadline) noexcept;

  // For a waiter that gives up before the operation does: why it has not finished, as a timeout that names the ranks
  // that are missing, which it asks for at most 300 ms. The operation goes on; ok if it has ended meanwhile.
  Status explain(Operation& operation) noexcept;

  // Fails everything in flight and to come, and tells the other ranks. Waits for nobody; idempotent; from any thread.
  void abort(std::string reason) noexcept;

  // The same without a word to the others: this rank leaves the group.
  void close() noexcept;

  // From here on the device hook hears of the group's failure, at once if there is one, and is asked for its own. None
  // (null): no longer; returns when it is not being asked any more.
  void set_device_hook(DeviceHook* device_hook) noexcept;

  // Whether the rank's process has proven to be on this host. Any thread.
  bool shares_host(int rank) const noexcept { return team_.shares_host[static_cast<size_t>(rank)]; }

  // For people: connects to the rank if nothing has been sent to it yet.
  Result<PeerPath> path_to(int rank);

  // The device hook has given this operation to its device, by that kernel: for errors and traces. One call at a time.
  void note_launch(const Operation& operation, std::string_view kernel);

  // How many collectives this rank has started.
  uint32_t num_started() const noexcept { return num_started_.load(std::memory_order_relaxed); }

  // Whether there is a failure(), at no cost.
  bool is_broken() const noexcept { return broken_.load(std::memory_order_relaxed); }

  // Why the group is broken; ok while it is not. A copy, since any thread may ask. Where a device hook has timed out it
  // asks the other ranks how far they are, for at most 300 ms.
  Status failure() noexcept;

  // Who has not entered the collective, which may have ended: asks the ranks, for at most 300 ms. None where it never
  // began, or nobody can be asked any more.
  std::vector<int> missing_from(const Operation& operation);

 private:
  friend class Engine;
  friend class Operation;

  // InboxListener
  Status on_mismatch(const transport::MessageHeader& theirs, const transport::Fingerprint& ours) noexcept override;
  void on_overflow(Status reason) noexcept override;
  bool has_ended(uint32_t sequence) noexcept override;

  // All below: the progress owner only.
  void begin(Operation& operation) noexcept;
  void on_run_finished(Operation& operation) noexcept;
  void finish(Operation& operation) noexcept;
  const Status& obstacle(const Operation& operation) const noexcept;

  // Ends the group's collectives: this rank found out and tells the others, or was told.
  void fail(Status reason) noexcept;
  void fail_quietly(Status reason) noexcept;
  void abort_quietly(const std::string& reason) noexcept;
  void end(Status reason) noexcept;
  void notify_others(transport::OperationKind kind, const Status& reason) noexcept;
  void on_departure(int source, uint32_t num_sent, Status reason) noexcept;
  void on_peer_lost(transport::PeerId peer) noexcept;
  Status loss_of(int rank) const;
  enum class DeviceCheck : uint8_t { kNothing, kFailed, kAsking };
  // Whether the device hook has brought the group down just now, or will once the others have told how far they are.
  DeviceCheck check_device_hook() noexcept;
  bool is_asking() const noexcept { return asked_for_fault_at_ && failure_.ok(); }
  // Closed or aborted, with nothing in flight.
  bool is_finished() const noexcept { return !aborted_.ok() && running_.empty(); }
  void fail_in_fork(Operation& operation) noexcept;
  // Takes the communicator out of the engine, which is shutting down or losing this group.
  void leave() noexcept;

  // Deadlines: the first look at an overdue collective asks all ranks how far they are; the answers name the culprit.
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

  void on_control(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  void send_control(transport::OperationKind kind, int destination, uint32_t slot, const std::string& text) noexcept;

  Engine& engine_;
  const std::string name_;
  const messaging::Team team_;
  std::optional<messaging::Inbox> inbox_;  // none once the engine has shut down
  std::atomic<uint32_t> num_started_{0};
  const uint32_t track_;            // in traces
  CallRecord latest_;               // collective that has begun; what an inquiry is answered with
  Published<CallRecord> launched_;  // the device hook's latest collective
  IntrusiveList<Operation> running_;
  Status failure_;                   // of the collectives
  Status aborted_;                   // of everything
  std::atomic<bool> broken_{false};  // one of the two is not ok
  DeviceHook* device_hook_ = nullptr;

  std::optional<sync::Clock::time_point> asked_at_;            // while a collective is overdue
  std::optional<sync::Clock::time_point> asked_for_fault_at_;  // once the device hook has timed out
  Answers answers_;
};

}  // namespace axon::engine
