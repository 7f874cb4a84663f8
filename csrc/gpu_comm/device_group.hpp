// The GPU side of a communicator. It runs operations as kernels in the order of the caller's stream, eagerly or in CUDA
// graphs, over slices of the ranks' device arenas.
//
//   auto formed = DeviceGroup::form(communicator, device, timeout);   // at this rank's first CUDA tensor
//   Result<bool> linked = group->has_all_links();                     // once; point to point: has_link(peer)
//   if (linked.value() && group->serves(operation)) group->launch(operation, stream);   // else use the host path
//
// A communicator has one DeviceGroup, for the one device that this rank uses in it. The group is destroyed before the
// communicator. serves() is a pure function of what all ranks of an operation know, so that all of them decide alike.
//
// Kernels work among the ranks of this host, which they number by local index. In a group that spans hosts, they serve
// messages between neighbours, and a collective's stages within each host:
//
//   Result<bool> linked = group->has_local_links();                   // once; the same on all ranks of the group
//   if (linked.value() && group->serves_local(stage)) group->launch_local(stage, stream);
//
// Everything else here, also errors, names ranks by their numbers in the group.
//
// Streams: Collectives share rings in the arena, so those of one group run one after the other on whatever streams. A
// launch on another stream than the last one waits for it by an event. Two streams of one capture are ordered in the
// same way. There is no such event between a graph and work outside it. The caller that replays a graph must order it
// against the group's other collectives. Sends and receives use rings of their own, so they may run beside collectives.
// Those to (or from) one peer must be launched in order on one stream, or be ordered by the caller. Streams must
// outlive the group.
//
// Destroying the group ends no kernel: queued kernels run to their end or until their timeout. abort() ends them, and
// so does the loss of a rank that they may wait for. A fault of one kernel ends all kernels of the group, both
// collectives and messages.
//
// Thread-safe, but collectives are launched one at a time, in the order in which the other ranks launch them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"
#include "engine/communicator.hpp"
#include "engine/device_hook.hpp"
#include "gpu_comm/barrier_descriptor.hpp"
#include "gpu_comm/local_team.hpp"
#include "gpu_comm/lost_ranks.hpp"
#include "gpu_comm/peer_links.hpp"
#include "gpu_comm/pinned_pool.hpp"
#include "gpu_comm/selector.hpp"
#include "gpu_comm/workspace/arrivals.hpp"
#include "ipc/arena.hpp"
#include "ipc/stream_order.hpp"
#include "kernels/prepared.hpp"
#include "kernels/zero_copy/collectives.hpp"

namespace axon::gpu_comm {

// A barrier of ranks that move data themselves around it. All members must be equal on all ranks.
struct StreamBarrier {
  cuda::DeviceOperation operation{};
  DataType dtype{};
  BarrierDescriptor descriptor{};
  std::chrono::milliseconds timeout{0};
};

// A transfer whose data passes through pinned memory, by which its kernels and the host tell each other of failures.
struct WatchedTransfer {
  enum class State : uint8_t { kOpen, kClosed, kAbandoned };  // closed: kernels may still run and report faults

  std::shared_ptr<PinnedBlock> memory;  // of the control; shared with the engine's part of the transfer
  cuda::TeamControl* control = nullptr;
  int peer = -1;                           // its rank in the group
  std::atomic<State> state{State::kOpen};  // publishes no other data
};

// More than 30 methods: the communicator's hook adds three, and eight report what the group has and does.
class DeviceGroup final : public engine::DeviceHook {
 public:
  // Takes a slice of the device's arena and sends this rank's address to the other ranks. Does not block. `timeout`
  // applies to every later wait: on the host for a peer's address, and in a kernel for a peer if the operation has no
  // timeout. `round` says how often the communicator gave up its GPU side before; it is the same on all ranks.
  static Result<std::unique_ptr<DeviceGroup>> form(engine::Communicator& communicator, int device,
                                                   std::chrono::milliseconds timeout, uint32_t round = 0);
  ~DeviceGroup();

  int device() const noexcept { return device_; }
  engine::Communicator& communicator() const noexcept { return communicator_; }
  // The number of the group's ranks on this host, and this rank's index among them.
  int num_local() const noexcept { return team_.size(); }
  int local_index() const noexcept { return team_.index(); }

  // Returns whether this rank and `peer` can access each other's arenas; both get the same answer. The first call waits
  // until the peer has formed its side ("Timed out … rank 2 has not used a GPU in this group yet"). Later calls cost
  // nothing. No rank has a link to one of another host, which needs no wait.
  Result<bool> has_link(int peer);

  // Returns whether all pairs of the group have links, which must be on one host. The first call of this or
  // has_local_links() is a collective: all ranks make it at the same position in the order of their collectives.
  Result<bool> has_all_links();
  // Returns whether, on every host, all pairs of ranks have links: the same on all ranks of the group. False if no host
  // has two ranks.
  Result<bool> has_local_links();

  // Returns why this rank's kernels cannot access the memory of `peer`, as far as this rank can tell, or ok. Ask after
  // has_link().
  Status obstacle_to(int peer) const;

  // Returns whether a kernel serves the operation; false means to use the host path. Ask after has_link() or
  // has_all_links().
  bool serves(const engine::Operation& operation) const noexcept;
  // Returns whether launch_local() takes the collective. Ask after has_local_links(). Ranks of different hosts decide
  // alike if their collectives have the same type and reduction, whatever the sizes and the numbers of ranks.
  bool serves_local(const engine::Operation& call) const noexcept;

  // Returns the kernel of an operation on tensors of this type and size among all ranks, for diagnostics. kNone before
  // has_all_links().
  Kernel kernel_for(const KernelQuery& query) const noexcept;

  // Enqueues an operation that is served, with buffers in device memory, and returns. The caller may destroy the
  // arguments at once. `beside` is this rank's own and may differ between ranks.
  Status launch(const engine::Operation& operation, cuda::StreamView stream,
                kernels::Beside beside = kernels::Beside::kNothing);
  // The same for a collective among the ranks of this host. Its arguments have one shard per local index, and its root
  // is a local index. A rank that is alone on its host copies its input. Traces and errors do not count this as a call
  // of the user: the caller notes that one (Communicator::note_launch).
  Status launch_local(const engine::Operation& call, cuda::StreamView stream,
                      kernels::Beside beside = kernels::Beside::kNothing);
  // Enqueues sends and receives that run at the same time in one kernel, so no order among them can deadlock. Of
  // several to (or from) one peer, each later one runs in a later kernel.
  Status launch_batch(std::span<const engine::Operation* const> point_to_points, cuda::StreamView stream);

  // Enqueues a barrier of all ranks' streams; has_all_links() must hold. After it, a stream sees what the other streams
  // held before it, and the other ranks no longer use what they used before it.
  Status enqueue_barrier(const StreamBarrier& barrier, cuda::StreamView stream);
  // Ends the waits of these arrivals once the group has failed.
  void watch(std::shared_ptr<Arrivals> arrivals);
  // Waits, on a stream ordered after a barrier, until all peers have signalled the tile. The next barrier must follow
  // all these waits.
  Status await(const Arrivals& arrivals, int tile, cuda::StreamView stream);

  // Shared by the CUDA graphs that hold kernels of the group, and by the group or its detach notice; its use count says
  // if such graphs exist.
  std::weak_ptr<void> graphs() const;

  // For transfers between prepared tensors (gpu_comm/partitioned_transfer.hpp).

  // Returns where peers find memory of this rank's GPU; registration 0 if they cannot map it.
  cuda::IpcLocation locate(const std::byte* data, size_t num_bytes);
  // Returns where this GPU sees memory of a linked peer's; `address` is what the peer itself calls it. Waits until the
  // memory is mapped.
  Result<std::byte*> find(int peer, cuda::IpcLocation location, size_t num_bytes, uint64_t address);
  // Completes the ends' view of the peer, and writes it to their record, in stream order.
  Status write_transfer(kernels::TransferEnds ends, int peer, std::chrono::milliseconds timeout,
                        cuda::StreamView stream);
  // Ends the waits of this transfer's kernels once the group has failed, and reports their faults as the group's.
  void watch(std::shared_ptr<WatchedTransfer> transfer);
  // While the result lives, the device's launch ledger assumes that kernels may be running. Null without an arena.
  ipc::LaunchLedger::Hold hold_ledger() { return arena_ == nullptr ? nullptr : arena_->launches().hold(); }
  // Enqueues kernels that their caller orders.
  template <typename Launch>
  Status enqueue(cuda::StreamView stream, Launch launch) {
    if (arena_ == nullptr) return enqueue_held(stream, std::move(launch));
    const std::lock_guard lock(mutex_);
    const cuda::DeviceGuard guard(device_);
    const ipc::LaunchLedger::Launching launching = arena_->launches().launching();
    AXON_TRY(order_.note(stream));
    AXON_TRY(launch());
    return arena_->launches().note(order_, stream);
  }
  // The same without an entry in the ledger, which the caller holds. At its end it makes one by an empty launch.
  template <typename Launch>
  Status enqueue_held(cuda::StreamView stream, Launch launch) {
    const std::lock_guard lock(mutex_);
    const cuda::DeviceGuard guard(device_);
    AXON_TRY(order_.note(stream));
    return launch();
  }

  // Statistic: operations that kernels performed directly on the peers' tensors. Queries the device, without waiting
  // for other streams.
  Result<uint64_t> num_zero_copy() const { return total(&cuda::TeamState::num_zero_copy); }
  // The same for messages that this rank has sent or received.
  Result<uint64_t> num_zero_copy_messages() const { return total(&cuda::TeamState::num_zero_copy_messages); }

  // Bytes on the GPU: the arena, which the process's groups share, and the group's slice. Zero without a slice.
  size_t arena_bytes() const noexcept { return slice_.num_bytes == 0 ? 0 : arena_->num_bytes(); }
  size_t slice_bytes() const noexcept { return slice_.num_bytes; }

  // Ends everything that runs and that comes later. Idempotent and thread-safe.
  void abort() noexcept;

  // DeviceHook: the communicator calls these from form() until the destructor.
  void on_failed(const Status& reason) noexcept override;
  void on_rank_lost(int rank, const Status& reason) noexcept override;
  // Returns a kernel's fault report: which wait ended, or what the other rank called.
  Status fault() noexcept override;

 private:
  DeviceGroup(engine::Communicator& communicator, int device, std::chrono::milliseconds timeout, cuda::Event event);

  Status take_slice();
  Result<uint64_t> total(uint32_t cuda::TeamState::* counter) const;
  void build_team(PeerAccess access, const cuda::TeamLayout& layout);
  Result<PeerAccess> agree_all();
  void show_progress();
  void connect(int index, PeerAccess access);
  bool mark_ended_ranks() noexcept;
  Status check_addressee(const engine::Operation& message);
  PeerAccess access_for(const engine::Operation& operation) const noexcept;
  PeerAccess access_for_all() const noexcept;
  bool serves(const KernelQuery& query, PeerAccess access) const noexcept;
  cuda::DeviceTeam team_for(PeerAccess access, std::chrono::milliseconds timeout) const noexcept;
  Kernel select(const KernelQuery& query, PeerAccess access) const noexcept;
  void note_choice(const KernelQuery& query, Kernel kernel) const;
  void abort(Status reason) noexcept;
  static void abort(const WatchedTransfer& transfer) noexcept;
  void abort_host_transfers() noexcept;
  Status fault_of_host_transfers() noexcept;
  template <typename Launch>
  Status launch_in_order(cuda::StreamView stream, Launch launch);
  Result<Kernel> launch_in_team(const engine::Operation& call, PeerAccess access, cuda::StreamView stream,
                                kernels::Beside beside);

  engine::Communicator& communicator_;
  const LocalTeam team_;
  const int device_;
  const std::chrono::milliseconds timeout_;
  ipc::Arena* arena_ = nullptr;       // null: this rank has no peer access
  ipc::ArenaSlice slice_;             // empty without an arena
  Status without_slice_;              // why there is no slice
  std::shared_ptr<PeerLinks> links_;  // shared with the engine, which has its control messages in flight

  // A slice holds two teams: one that fits into all slices, and one that fits into large ones. The smallest slice of a
  // pair, or of the whole group, determines the team in use. So no rank's layout depends on what slices other ranks
  // got.
  static constexpr size_t kNumTeams = 2;

  mutable std::mutex mutex_;  // guards the members below, and the order of launches
  ipc::StreamOrder order_;
  std::array<cuda::DeviceTeam, kNumTeams> teams_{};                         // by PeerAccess, from kSmall
  std::array<std::optional<PeerAccess>, cuda::kMaxTeamRanks> peer_access_;  // agreed with each, by local index
  std::optional<PeerAccess> local_access_;  // agreed by all ranks: the least between neighbours
  mutable uint32_t warned_of_ = 0;          // one bit per operation whose kernel in AXON_ALGO did not serve a call

  // Guards the members below. Held only for moments, since the progress owner takes it, too.
  std::mutex fate_mutex_;
  Status reason_;  // why the kernels were told to end
  LostRanks lost_ranks_;
  std::vector<std::shared_ptr<Arrivals>> watched_;
  std::vector<std::shared_ptr<WatchedTransfer>> host_transfers_;  // shared with those that are open
};

}  // namespace axon::gpu_comm
