// The one engine of a process: transport, peers and progress, shared by all groups and all clients.
//
//   Engine& engine = Engine::instance();       // starts it; throws std::runtime_error when the transport cannot start
//   const OwnAddress own = engine.make_address();    // exchange own.address() through a store …
//   Result<…> formed = engine.form({.name = name, .rank = rank, .addresses = all_ranks_addresses});
//
// Threads: docs/threading.md. Everything private belongs to the progress owner.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/forks.hpp"
#include "base/status.hpp"
#include "collectives/selector.hpp"
#include "engine/client.hpp"
#include "engine/communicator.hpp"
#include "engine/doorbell.hpp"
#include "engine/host_beacon.hpp"
#include "engine/operation.hpp"
#include "engine/own_address.hpp"
#include "engine/peer_address.hpp"
#include "engine/progress.hpp"
#include "messaging/messenger.hpp"

namespace axon::engine {

struct GroupSpecification {
  std::string name;
  int rank = 0;
  std::vector<PeerAddress> addresses;  // by rank, this rank's own included
};

class EngineHold;

class Engine final : private messaging::ControlHandler, private Driver {
 public:
  // Tests bring their own transport and say which host they are on; everybody else uses instance().
  Engine(std::unique_ptr<transport::Transport> transport, uint64_t host, collectives::AlgorithmOverrides overrides);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  static Engine& instance();
  // The same, for a caller that is going to form a group or to open a client.
  static EngineHold hold_instance();
  // Ends the process's engine, if it has one. For exit.
  static void shut_down_instance() noexcept;
  // Ends it if no group and no client uses it. For the moment before a fork: the child can start an engine then, which
  // UCX does not allow as long as the parent's lives. Does nothing in a callback of the engine's. Without Python's
  // lock.
  static void end_unused_instance() noexcept;

  // A fresh address for each group to join. From here on messages for that group are kept until it is formed or given
  // up.
  OwnAddress make_address();

  // All ranks' addresses are there: nobody is asked or waited for.
  Result<std::unique_ptr<Communicator>> form(GroupSpecification specification);

  // Whether a group of this size may be formed: see check_room(). Before its address is made, which lets others
  // connect.
  Status check_room_for_group(size_t num_ranks);

  // For clients beside process groups, see engine/client.hpp. Fails once the engine is shut down.
  Status enter(Client& client);
  void submit(Submission& item) noexcept;
  // The same, but from within a complete() the item is left to whoever delivers: what is submitted in answer to what
  // has come does not nest, however much comes meanwhile.
  void submit_after_completion(Submission& item) noexcept;
  // This thread is within a complete(), and so is not to wait for others of these.
  static bool is_completing() noexcept;
  // Refuses what waits at its sender, soon: any thread, also the progress owner and those that must not drive.
  void refuse_later(void* rendezvous) noexcept;
  // True when `finished`, which a complete() sets; false at the deadline. Drives as long as something has moved within
  // its spin budget, then sleeps.
  bool wait(const sync::atomic<bool>& finished, sync::Clock::time_point deadline,
            sync::Clock::duration spin_budget = pace::kSpinBudget) noexcept {
    return progress_->wait(finished, deadline, spin_budget);
  }
  // What has come by now is looked at, as far as that is bounded, before it returns: for whoever is about to act on
  // something that has come before, of which there may be news. Drives; not within anything that the progress owner
  // calls.
  void catch_up() noexcept;
  // Neither that nor `then`, by coarse_now(), is so recent that this process may not have been stopped since.
  bool has_events_since(std::chrono::milliseconds then) const noexcept;
  // For those who set a flag outside a complete() that others wait for.
  void nudge() noexcept { progress_->nudge(); }
  template <typename Action>
  auto exclusively(Action action) {
    return progress_->exclusively(std::move(action));
  }
  // Progress owner only, as all that follows.
  // The peer of this process, met now or in an earlier group.
  Result<transport::PeerId> meet(const PeerAddress& peer_address);
  // Whether so many further peers, and all that have been met, find the file descriptors that they need. Whoever runs
  // out of them within UCX ends there: its listener closes for good at the first connection that it cannot accept
  // (UCX 1.22).
  Status check_room(size_t num_new_peers) const;
  const PeerAddress& address() const noexcept { return address_; }
  messaging::Messenger& messenger() noexcept { return messenger_; }
  void post(Submission& item) noexcept;
  // Once the flag is not 0, which a device writes.
  void wait_for_flag(FlagWaiter& item, const std::atomic<uint32_t>& flag) noexcept;
  void wake() noexcept { progress_->wake(); }
  // Whether the peer has proven that it is on this host: it shares the kernel and the namespaces of processes, network
  // and shared memory, and its pid means something here.
  bool shares_host(transport::PeerId peer) const noexcept { return peers_[peer].shares_host; }
  // Another process of this host.
  bool is_neighbour(transport::PeerId peer) const noexcept {
    return shares_host(peer) && peers_[peer].address.pid != address_.pid;
  }
  // Other processes of this host that have been met and are there.
  int num_neighbours() const noexcept { return num_neighbours_; }

  // Messages from outside all groups, or that came twice, and rings that no peer writes; see Messenger.
  uint64_t num_refused();

  // A process of this host was killed in the midst of writing where all of them write, and nothing of theirs gets here
  // any more. All groups have ended, and can be formed anew: instance() is another engine then.
  bool is_wedged() const noexcept { return is_wedged_.load(std::memory_order_acquire); }

  // This process is a fork of the engine's own: the memory is there, the thread is not, and the connections are its
  // parent's. Nothing of the engine may be used then; what can be asked for all the same fails with this.
  bool is_forked() const noexcept { return num_forks() != born_after_; }
  static Status forked();

  // Aborts what is in flight, delivers what was sent, stops the thread and closes the transport. Whatever is started
  // later fails. Idempotent.
  void shut_down() noexcept;
  // The transport is closed, and the thread has ended.
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_acquire); }

 private:
  friend class Communicator;
  friend class EngineHold;
  friend class OwnAddress;

  bool is_used() noexcept;

  struct Peer {
    PeerAddress address;
    bool shares_host = false;
    std::string loss;  // why it is gone; empty while it is not
  };
  using ProcessId = std::array<uint64_t, 2>;

  // For communicators.
  void send_control(transport::PeerId peer, const transport::MessageHeader& header, const std::string& text) noexcept;
  void settle() noexcept;
  void lose(transport::PeerId peer, std::string reason) noexcept;
  void on_wedged(transport::PeerId killed) noexcept;
  void light_beacon();
  bool is_here(const PeerAddress& peer_address) const;
  // As check_room(), for those of them that have not been met.
  Status check_room_for(std::span<const PeerAddress> addresses) const;
  Result<transport::PeerId> meet_unchecked(const PeerAddress& peer_address);

  // Driver
  unsigned drive() noexcept override;
  void tick(sync::Clock::time_point now) noexcept override;
  bool has_submissions() const noexcept override { return !submitted_.empty(); }
  bool has_running() const noexcept override;
  bool holds_back() const noexcept override { return transport_ && transport_->holds_back(); }
  bool has_flag_waiters() const noexcept override { return !awaiting_start_.empty() || !flag_waiters_.empty(); }
  bool has_neighbours() const noexcept override { return num_neighbours_ != 0; }
  bool arm() noexcept override { return !shut_down_ && transport_->arm(); }
  void on_process_ended(transport::PeerId peer) noexcept override;
  QueueNode* take_completions() noexcept override;
  bool has_completions() const noexcept override { return completions_ != nullptr; }
  void complete(QueueNode* chain) noexcept override;

  // ControlHandler
  void on_control(const transport::MessageHeader& header, const transport::Payload& payload) noexcept override;
  void on_peer_lost(transport::PeerId peer, Status reason) noexcept override;

  size_t begin_submitted() noexcept;
  size_t start_flagged() noexcept;
  size_t run_flag_waiters() noexcept;
  void finish_completed() noexcept;
  void release_rested() noexcept;

  std::unique_ptr<transport::Transport> transport_;  // none once shut down
  PeerAddress address_;                              // this process's, but for the key
  const collectives::AlgorithmOverrides overrides_;
  std::optional<HostBeacon> beacon_;  // none: nobody can tell that this process is on their host
  const uint32_t born_after_ = num_forks();
  messaging::Messenger messenger_;
  Doorbell doorbell_;

  std::vector<Peer> peers_;  // by PeerId
  std::map<ProcessId, transport::PeerId> peer_of_;
  std::vector<Communicator*> communicators_;
  std::vector<Client*> clients_;

  Submissions submitted_;                   // by any thread, taken by the progress owner
  std::vector<Operation*> awaiting_start_;  // begun, in order, waiting for their inputs
  IntrusiveList<FlagWaiter> flag_waiters_;  // waiting for their flags
  IntrusiveList<Operation> finished_;       // run to the end, not yet finished
  IntrusiveList<Operation> restless_;       // finished, but the transport still has their memory
  QueueNode* completions_ = nullptr;        // in order; completions_end_ is its last
  QueueNode* completions_end_ = nullptr;
  size_t num_running_ = 0;
  int num_neighbours_ = 0;  // that are not lost
  sync::Clock::time_point next_tick_{};
  bool shut_down_ = false;
  Status wedged_;                       // why, if it is_wedged()
  std::atomic<bool> is_wedged_{false};  // release behind wedged_
  std::atomic<bool> has_ended_{false};
  std::atomic<int> num_holds_{0};
  std::atomic<std::chrono::milliseconds> caught_up_at_{};

  std::optional<Progress> progress_;  // last: its thread uses all of the above
};

// The process's engine, which is not taken for an unused one as long as this lives.
class EngineHold {
 public:
  // Relaxed: made under the lock under which the count is looked at, and whoever lets go has joined the engine before.
  explicit EngineHold(Engine& engine) noexcept : engine_(engine) {
    engine_.num_holds_.fetch_add(1, std::memory_order_relaxed);
  }
  ~EngineHold() { engine_.num_holds_.fetch_sub(1, std::memory_order_release); }
  EngineHold(const EngineHold&) = delete;
  EngineHold& operator=(const EngineHold&) = delete;

  Engine& engine() const noexcept { return engine_; }

 private:
  Engine& engine_;
};

}  // namespace axon::engine
