// The engine of a process: transport, peers and progress, shared by all clients, which are groups and runtimes. One per
// process. It knows a group only as a client; form() is the exception, which makes one.
//
//   Engine& engine = instance();                    // the process's own, see instance.hpp
//   const OwnAddress own = engine.make_address();   // exchange own.address() through a store
//   Result<std::unique_ptr<Communicator>> formed = engine.form({.name = name, .rank = rank, .addresses = addresses});
//
// Threads: docs/threading.md. All private members belong to the progress owner.
#pragma once

#include <atomic>
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
#include "engine/operation.hpp"
#include "engine/own_address.hpp"
#include "engine/peer_address.hpp"
#include "engine/peers.hpp"
#include "engine/progress.hpp"
#include "engine/replays.hpp"
#include "engine/standing_address.hpp"
#include "engine/status_page.hpp"
#include "messaging/messenger.hpp"

namespace axon::engine {

struct GroupSpecification {
  std::string name;
  int rank = 0;
  std::vector<PeerAddress> addresses;  // by rank, this rank's own included
};

// More than 30 methods: 13 implement interfaces for the progress loop and the messenger. The others serve clients,
// whose submissions, completions and peers one progress owner handles together.
class Engine final : private messaging::LossListener, private Driver {
 public:
  // Tests pass their own transport and host identity, and may leave out the status page; all other code uses instance()
  // (instance.hpp). `status_page`: see status_page().
  Engine(std::unique_ptr<transport::Transport> transport, uint64_t host, collectives::AlgorithmOverrides overrides,
         std::shared_ptr<StatusPage> status_page = StatusPage::make());
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Returns a fresh address for a group to join. Messages for that group are kept until it is formed or the address is
  // destroyed.
  OwnAddress make_address();

  // The same for a group whose members change.
  StandingAddress make_standing_address();

  // Forms a group of the processes at `addresses`. Neither queries nor waits for other ranks.
  Result<std::unique_ptr<Communicator>> form(GroupSpecification specification);

  // Checks whether a group of this size may be formed, see check_room(). Call it before make_address(), which lets
  // other ranks connect.
  Status check_room_for_group(size_t num_ranks);

  // For clients, see engine/client.hpp. Fails after the engine is shut down.
  Status enter(Client& client);
  void submit(Submission& item) noexcept;
  // Like submit(), but within a complete() the thread that completes begins the item later. So items that answer
  // messages do not nest, however many messages arrive.
  void submit_after_completion(Submission& item) noexcept;
  // The item begins soon, on another thread. For threads that must not drive, such as CUDA's.
  void submit_to_drivers(Submission& item) noexcept;
  // Returns whether this thread is within a complete(), where it must not wait for other completions.
  static bool is_completing() noexcept;
  // Soon refuses a payload that waits at its sender. Any thread, also the progress owner and threads that must not
  // drive.
  void refuse_later(void* rendezvous) noexcept;
  // Returns true when `finished` is set by a complete(), and false at the deadline. Drives while something has moved
  // within the spin budget, then sleeps.
  bool wait(const sync::atomic<bool>& finished, sync::Clock::time_point deadline,
            sync::Clock::duration spin_budget = pace::kSpinBudget) noexcept {
    return progress_->wait(finished, deadline, spin_budget);
  }
  // Handles the messages that have arrived by now, up to a bound. For a caller that acts on an earlier message, about
  // which a later one may have arrived. Drives, so nothing that the progress owner calls may use it.
  void catch_up() noexcept;
  // Returns whether events may have been missed: the last catch_up() and `then` (by coarse_now()) are both old enough
  // that this process may have been stopped since.
  bool has_events_since(std::chrono::milliseconds then) const noexcept;
  // Drives once, unless another thread drives. For threads that ask again and again whether something is finished: the
  // background thread sleeps between its rounds. Never blocks, but may run completions.
  void poll() noexcept { progress_->pump(); }
  // For threads that set a flag on which other threads wait, outside a complete().
  void nudge() noexcept { progress_->nudge(); }
  template <typename Action>
  auto exclusively(Action action) {
    return progress_->exclusively(std::move(action));
  }
  // Progress owner only, as are the following methods down to wait_for_flag().
  // Returns the peer of this process, added now or by an earlier group, and watches it.
  Result<transport::PeerId> meet(const PeerAddress& peer_address);
  const Peers& peers() const noexcept { return peers_; }
  // A peer to which no connection can be opened is lost, unless only descriptors are short.
  Status watch_peer(transport::PeerId peer) noexcept;
  messaging::Messenger& messenger() noexcept { return messenger_; }
  Replays& replays() noexcept { return replays_; }
  // The item's complete() runs after the token is released.
  void post(Submission& item) noexcept { completions_.push(item); }
  // The item's finish() runs after the coroutines that can continue, and before the token is released.
  void finish_later(Submission& item) noexcept { ended_.push(item); }
  // The item's begin() runs in a later round of the progress owner, one item in each round. For long work of this
  // process that is done in steps: threads that only submit do not continue it. At the shut-down all items begin, after
  // the clients have been told; they must not continue then.
  void continue_later(Submission& item) noexcept { unfinished_.push(item); }
  // Runs the coroutines that can continue, and finishes what has ended.
  void run_ready() noexcept;
  // Begins what is submitted, and completes everything that can complete without the network; called after failures.
  void settle() noexcept;
  // See Progress::note_served().
  void note_served() noexcept { progress_->note_served(); }
  // Calls the waiter after the flag, which a device writes, has reached the awaited value.
  void wait_for_flag(FlagWaiter& item, const std::atomic<uint32_t>& flag, uint32_t awaited = 1) noexcept;
  // The same after any of these flags has the awaited value.
  void wait_for_any_flag(FlagWaiter& item, std::span<const std::atomic<uint32_t>> flags, uint32_t awaited) noexcept;
  // An operation on a device's tensors has begun, or has ended.
  void begin_device_operation() noexcept { ++num_device_operations_; }
  void end_device_operation() noexcept { --num_device_operations_; }
  // Makes sure that a thread drives what has been started. Any thread.
  void wake() noexcept { progress_->wake(); }
  // Returns the user's choices of algorithms. Any thread.
  const collectives::AlgorithmOverrides& overrides() const noexcept { return overrides_; }

  // The page that shows the groups to the doctor; null if there is none. Shared with them. Any thread.
  const std::shared_ptr<StatusPage>& status_page() const noexcept { return status_page_; }

  // Returns the number of refused messages (from outside all groups, or repeated) and rings; see Messenger.
  uint64_t num_refused();

  // Returns whether this process is a fork of the process that owns the engine. It has the memory, but not the thread,
  // and the connections are its parent's. The engine must not be used then; calls that check for it fail with forked().
  bool is_forked() const noexcept { return num_forks() != born_after_; }
  static Status forked();

  // Aborts what is in flight, delivers what was sent, stops the thread and closes the transport. Operations that are
  // started later fail. Idempotent.
  void shut_down() noexcept;
  // Returns whether a client is still open. Begins what is submitted first.
  bool is_used() noexcept;
  // Returns whether the transport is closed and the thread has ended.
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_acquire); }

 private:
  void lose(transport::PeerId peer, std::string reason) noexcept;
  Result<transport::PeerId> meet_unchecked(const PeerAddress& peer_address);
  // Returns those of a group's addresses to which this process connects when it forms the group.
  std::vector<PeerAddress> connected_from_the_start(const std::vector<PeerAddress>& addresses,
                                                    const std::vector<int>& watched) const;
  void watch(transport::PeerId peer);
  // Fails after the engine is shut down.
  Status check_open() const;

  // Driver
  unsigned drive() noexcept override;
  void tick(sync::Clock::time_point now) noexcept override;
  bool has_submissions() const noexcept override { return !submitted_.empty(); }
  bool has_running() const noexcept override;
  bool holds_back() const noexcept override { return transport_ && (transport_->holds_back() || !unfinished_.empty()); }
  bool has_flag_waiters() const noexcept override { return !flag_waiters_.empty(); }
  bool serves_device() const noexcept override { return num_device_operations_ != 0; }
  bool has_neighbours() const noexcept override { return peers_.num_neighbours() != 0; }
  bool arm() noexcept override { return !shut_down_ && unfinished_.empty() && transport_->arm(); }
  void on_process_ended(transport::PeerId peer) noexcept override;
  QueueNode* take_completions() noexcept override { return completions_.take_all(); }
  bool has_completions() const noexcept override { return !completions_.empty(); }
  void complete(QueueNode* chain) noexcept override;

  // LossListener
  void on_peer_lost(transport::PeerId peer, Status reason) noexcept override;

  size_t begin_submitted() noexcept;
  void finish_ended() noexcept;

  const std::shared_ptr<StatusPage> status_page_;
  std::unique_ptr<transport::Transport> transport_;  // null after shut_down()
  Peers peers_;
  const collectives::AlgorithmOverrides overrides_;
  const uint32_t born_after_ = num_forks();
  messaging::Messenger messenger_;
  Doorbell doorbell_;

  std::vector<Client*> clients_;

  Submissions submitted_;  // pushed by any thread, taken by the progress owner
  FlagWaiters flag_waiters_;
  size_t num_device_operations_ = 0;
  Replays replays_{*this};
  OrderedQueue unfinished_;   // to continue, one in each round
  OrderedQueue ended_;        // to finish before the token is released
  OrderedQueue completions_;  // to complete after that
  sync::Clock::time_point next_tick_{};
  bool shut_down_ = false;
  std::atomic<bool> has_ended_{false};
  std::atomic<std::chrono::milliseconds> caught_up_at_{};

  std::optional<Progress> progress_;  // last: its thread uses all of the above
};

}  // namespace axon::engine
