// A process group as its users see it: any thread starts operations and waits for them. What the progress owner does
// for the group is in group.hpp. Owned by the caller of form(). It is cheap: it opens no connection and starts no
// thread.
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
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/captured_call.hpp"
#include "engine/device_hook.hpp"
#include "engine/group.hpp"
#include "engine/operation.hpp"

namespace axon::collectives {
class AlgorithmOverrides;
}  // namespace axon::collectives

namespace axon::engine {

class Engine;

// The path that this process's messages take to a peer.
struct PeerPath {
  bool same_host = false;  // the peer may share memory with this process
  std::vector<transport::Lane> lanes;
  std::vector<std::string> obstacles;  // why messages to another host take no more lanes
};

class Communicator final {
 public:
  explicit Communicator(std::shared_ptr<Group> group);
  // Aborts what is still in flight.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Engine& engine() const noexcept { return engine_; }
  // For what starts operations of its own as progress owner (engine/partitioned_message.hpp).
  const std::shared_ptr<Group>& group() const noexcept { return group_; }
  int rank() const noexcept { return group_->team().rank; }
  int size() const noexcept { return group_->team().size(); }
  const std::string& name() const noexcept { return group_->name(); }
  // The group's hosts, as its ranks claim them: the same on all ranks.
  const messaging::Topology& topology() const noexcept { return group_->team().topology; }
  // Returns the text with a prefix for error messages: "[rank 1 of group 'tensor'] text".
  std::string signed_text(const std::string& text) const { return group_->signed_text(text); }

  // Starts an operation whose fields are filled in. The operation must live at least until this returns. Never blocks
  // and never fails: a failure becomes the operation's status.
  void start(Operation& operation) noexcept;

  // A CUDA graph captures the operation, instead of its start: whenever a kernel of the graph triggers this id
  // (engine/replays.hpp), the engine runs a copy on these segments. All ranks capture the operations of a group, and
  // the messages of a pair of ranks under one tag, in the same order. Keep the result with the graph.
  Result<std::shared_ptr<void>> capture(const Operation& operation, uint32_t trigger_id,
                                        std::shared_ptr<DeviceSegments> segments, CapturedCall::OnFailure on_failure);

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

  // Leaves the group with notice. The collectives that this rank has completed complete on the other ranks, and all
  // later ones fail there. If some are in flight here, this is abort().
  void leave(const std::string& reason) noexcept;

  // From here on the engine notifies the device hook of the group's failure, at once if the group has failed already,
  // and asks the hook for faults. Null detaches the hook; the engine does not call it after this returns.
  void set_device_hook(DeviceHook* device_hook) noexcept;

  // Returns whether the rank's process has proven to be on this host. Any thread.
  bool shares_host(int rank) const noexcept { return group_->team().shares_host[static_cast<size_t>(rank)]; }

  // Returns the algorithm of a collective on CPU tensors; `num_bytes` as in collectives/selector.hpp.
  const collectives::AlgorithmRow& algorithm_for(transport::OperationKind kind, size_t num_bytes) const noexcept {
    return group_->algorithm_for(kind, num_bytes);
  }
  // Null unless results are checked. Any thread.
  const std::shared_ptr<ResultCheck>& result_check() const noexcept { return group_->result_check(); }
  // Returns the user's choices, which are the engine's.
  const collectives::AlgorithmOverrides& overrides() const noexcept;

  // For diagnostics: connects to the rank if nothing has been sent to it yet.
  Result<PeerPath> path_to(int rank);

  // Records that the device hook has launched `kernel` for this operation, for errors and traces. It waits for other
  // ranks, unless the stream is being captured. One call at a time.
  enum class Launch : uint8_t { kRuns, kIsCaptured };
  void note_launch(const Operation& operation, std::string_view kernel, Launch launch = Launch::kRuns) {
    group_->note_launch(operation, kernel, launch == Launch::kRuns);
  }

  // For the live view (engine/status_page.hpp); any thread, one at a time. The number says how often readers have
  // asked.
  uint32_t num_progress_requests() const noexcept { return group_->status().num_requests(); }
  void show_progress(std::span<const DeviceProgress> ranks, sync::Clock::time_point read_at) noexcept {
    group_->status().note_progress(ranks, read_at);
  }

  // Returns the number of collectives that this rank has started.
  uint32_t num_started() const noexcept { return num_started_.load(std::memory_order_relaxed); }

  // Returns whether the group has failed, with one relaxed load.
  bool is_broken() const noexcept { return group_->is_broken(); }

  // Returns why the group has failed, or ok if it has not. Returns a copy, since any thread may ask. After a device
  // hook has timed out, queries the other ranks' progress for at most 300 ms.
  Status failure() noexcept;

  // Returns the ranks that have not entered the collective, which may have ended; queries them for at most 300 ms.
  // Empty if the collective never began, or if the ranks cannot be queried any more.
  std::vector<int> missing_from(const Operation& operation);

 private:
  // Progress owner only.
  Result<Replay> number_capture(const Operation& operation);
  // Fails what a forked child starts, or waits for.
  Status forked(const Operation& operation) const;

  const std::shared_ptr<Group> group_;  // shared with the engine while the group is its client
  Engine& engine_;
  std::atomic<uint32_t> num_started_{0};
  uint32_t num_captured_ = 0;  // collectives; progress owner only, as the following
  std::map<std::tuple<Direction, int, uint32_t>, uint32_t> num_captured_messages_;  // by direction, peer and tag
};

}  // namespace axon::engine
