// The state of a process group that the progress owner uses: its inbox, its running operations, and their failures and
// deadlines. It is a client of the engine. Users see the group's Communicator.
//
//   operation.join(*group);      // any thread
//   engine.submit(operation);    // → group.begin(operation) … group.finish(operation)
//
// Shared by its communicator and, while it is a client, the engine. It is one until it is detached and no transfer
// touches the memory of its operations, or until the transport is gone. Progress owner only, except for what is marked.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/client.hpp"
#include "engine/device_hook.hpp"
#include "engine/mutual_waits.hpp"
#include "engine/operation.hpp"
#include "engine/progress_queries.hpp"
#include "engine/result_check.hpp"
#include "engine/status_page.hpp"
#include "messaging/inbox.hpp"
#include "messaging/team.hpp"

namespace axon::collectives {
struct AlgorithmRow;
}  // namespace axon::collectives

namespace axon::engine {

class Engine;

// More than 30 methods: 10 implement interfaces of the engine and the inbox. Operations, failures and deadlines act on
// one list of running operations and end together; each has a source file of its own.
class Group final : public Client, public messaging::InboxListener, public std::enable_shared_from_this<Group> {
 public:
  Group(Engine& engine, std::string name, messaging::Team team);

  // Any thread.
  Engine& engine() const noexcept { return engine_; }
  const std::string& name() const noexcept { return name_; }
  const messaging::Team& team() const noexcept { return team_; }
  // Null unless results are checked.
  const std::shared_ptr<ResultCheck>& result_check() const noexcept { return result_check_; }
  bool is_broken() const noexcept { return broken_.load(std::memory_order_relaxed); }
  std::string signed_text(const std::string& text) const;
  const collectives::AlgorithmRow& algorithm_for(transport::OperationKind kind, size_t num_bytes) const noexcept;
  void note_launch(const Operation& operation, std::string_view kernel, bool runs);  // one call at a time
  GroupStatus& status() noexcept { return status_; }

  // From here on the group gets its messages.
  void open();
  // Sends and receives nothing from here on. All operations must have ended.
  void detach() noexcept;
  bool is_detached() const noexcept { return !inbox_; }

  // For its operations.
  void begin(Operation& operation) noexcept;
  void on_run_ended(Operation& operation) noexcept;
  void on_posted(Operation& send) noexcept;
  void finish(Operation& operation) noexcept;

  // Each ends all operations, current and future. close() tells no other rank. abort() also notifies the other ranks,
  // whose collectives fail. leave() notifies them so that they complete the collectives that this rank has completed.
  void close() noexcept;
  void abort(const std::string& reason) noexcept;
  void leave(const std::string& reason) noexcept;
  void end(Status reason) noexcept;
  // Ends the group's collectives, and its kernels: this rank has found the failure, and notifies the others.
  void fail(Status reason) noexcept;
  // Returns why the group has failed, or ok if it has not.
  const Status& failure() const noexcept { return aborted_.ok() ? failure_ : aborted_; }

  void set_device_hook(DeviceHook* device_hook) noexcept;
  enum class DeviceCheck : uint8_t { kNothing, kFailed, kAsking };
  // Reports whether the device hook has failed the group just now (kFailed), or will after the ranks have answered.
  DeviceCheck check_device_hook() noexcept;

  // Queries the progress of ranks: of those that are notified of failures, and of those that the operation waits for.
  // The group must not be detached.
  sync::Clock::time_point ask(Operation& operation) noexcept {
    return queries_.ask(operation.exchange().ranks_awaited());
  }
  // Queries the progress of all ranks, of which some may have to be connected first.
  sync::Clock::time_point ask_all() noexcept { return queries_.ask_all(); }
  bool have_all_expired(sync::Clock::time_point asked_at) const noexcept { return queries_.have_all_expired(asked_at); }
  const Answers& answers() const noexcept { return queries_.answers(); }
  // Returns whether the answers suffice to name the missing ranks, or no further answers are expected.
  bool has_heard_enough(const Operation& operation, sync::Clock::time_point asked_at) const noexcept;
  // Says which ranks the operation waits for, as far as the answers tell.
  std::string findings(Operation& operation, sync::Clock::time_point asked_at);

 private:
  // Client
  bool tick(sync::Clock::time_point now) noexcept override;
  bool has_running() const noexcept override;
  bool is_closed() const noexcept override { return !aborted_.ok() && running_.empty(); }
  void on_peer_lost(transport::PeerId peer, const std::string& reason) noexcept override;
  void on_shut_down() noexcept override;
  void on_transport_gone() noexcept override;

  // InboxListener
  void on_control(const transport::ControlHeader& header, const transport::Payload& payload) noexcept override;
  Status on_mismatch(const transport::OperationHeader& theirs, const transport::Fingerprint& ours) noexcept override;
  void on_overflow(Status reason) noexcept override;
  bool has_ended(uint32_t sequence) noexcept override;

  const Status& obstacle(const Operation& operation) const noexcept;
  void put_in_order(Operation& send) noexcept;
  // Returns the algorithm of each of its segments.
  const collectives::AlgorithmRow& algorithm_for(const Operation& operation) const noexcept;

  // The same for a rank that was notified.
  void fail_quietly(Status reason) noexcept;
  std::optional<messaging::Team> team_met_again(std::span<const int> ranks) const;
  std::vector<int> ranks_to_notify(transport::MessageKind kind, ErrorCode code) const;
  void notify_others(transport::MessageKind kind, ErrorCode code, const std::string& text) noexcept;
  void notify(const messaging::Team& team, int other, transport::MessageKind kind, ErrorCode code,
              const std::string& text) noexcept;
  void on_notice(const transport::ControlHeader& notice, const std::string& text) noexcept;
  void pass_on(const transport::ControlHeader& notice, const std::string& text) noexcept;
  void make_contacts(sync::Clock::time_point now) noexcept;
  void make_contact(int rank, bool is_repeated, std::vector<int>& unwatched) noexcept;
  bool is_watched(int rank) const noexcept;
  void watch(int rank) noexcept;
  void on_contact(int source) noexcept;
  void on_results(transport::MessageKind kind, int source, const transport::Payload& payload) noexcept;
  void on_leave(const transport::ControlHeader& notice, const std::string& text, const Status& reason) noexcept;
  void fail_after_leave() noexcept;
  bool is_after_leave(uint32_t sequence) const noexcept;
  bool needs_rank_that_left(const Operation& operation) const noexcept;
  void on_departure(int source, uint32_t num_sent, Status reason) noexcept;

  void check_deadlines(sync::Clock::time_point now) noexcept;
  void check_mutual_waits(sync::Clock::time_point now) noexcept;
  void check_results(sync::Clock::time_point now) noexcept;
  bool has_operations() const noexcept;
  void time_out(Operation& operation, sync::Clock::time_point asked_at) noexcept;
  void show_waits() noexcept;
  void release_rested() noexcept;
  void release(Operation& operation) noexcept;
  template <typename Action>
  void for_each_running(Action action) noexcept;

  Engine& engine_;
  const std::string name_;
  const messaging::Team team_;
  const std::vector<int> notified_;        // of failures, by this rank
  std::shared_ptr<Group> self_;            // the engine's share: set while the group is its client
  std::optional<messaging::Inbox> inbox_;  // empty once it is detached
  const uint32_t track_;                   // in traces
  GroupStatus status_;
  ProgressQueries queries_;
  MutualWaits mutual_waits_{queries_};
  const std::shared_ptr<ResultCheck> result_check_;  // shared with operations
  bool has_warned_of_results_ = false;
  bool has_warned_of_watches_ = false;
  sync::Clock::time_point next_contacts_{};  // when contacts are repeated
  bool has_warned_of_mutual_waits_ = false;
  IntrusiveList<Operation> running_;
  IntrusiveList<Operation, Unposted> unposted_;  // sends in the order in which their messages must go out
  IntrusiveList<Operation> restless_;            // finished, but the transport still uses their memory
  Status failure_;                               // of the collectives
  Status aborted_;                               // of everything
  std::atomic<bool> broken_{false};              // one of the two is not ok
  std::atomic<bool> has_worked_{false};  // an operation has succeeded, or was launched: all ranks have formed it
  // The notice of the rank that left after the fewest collectives. Later collectives fail.
  struct Leave {
    transport::ControlHeader notice;
    std::string text;
    Status reason;  // the same for users
    bool is_passed_on = false;
  };
  std::optional<Leave> leave_;
  DeviceHook* device_hook_ = nullptr;

  std::optional<sync::Clock::time_point> asked_at_;            // set while a collective is overdue
  std::optional<sync::Clock::time_point> asked_for_fault_at_;  // set after the device hook has timed out
};

// An action may end its operation.
template <typename Action>
void Group::for_each_running(Action action) noexcept {
  for (Operation* operation = running_.front(); operation != nullptr;) {
    Operation* next = running_.next(*operation);
    action(*operation);
    operation = next;
  }
}

}  // namespace axon::engine
