// The GPU side of a communicator: its operations as kernels in the order of the caller's stream, eager or in CUDA
// graphs, over slices of the ranks' device arenas.
//
//   Result<…> formed = DeviceGroup::form(communicator, device, timeout);   // at this rank's first CUDA tensor
//   Result<bool> direct = group->has_all_links();                          // once; point to point: has_link(peer)
//   if (direct.value() && group->serves(operation)) group->launch(operation, stream);   // else: through the host
//
// One a communicator, for the one device that this rank uses in it; destroyed before the communicator. Whether an
// operation is served is a pure function of what all its ranks know alike, so that they decide alike.
//
// Streams. Collectives share rings in the arena, so those of one group run one after the other, whatever their streams:
// a launch on another stream than the last one waits for it by an event. Two streams of one capture are ordered in the
// same way. Between a graph and what runs outside of it there is no such event: whoever replays a graph orders it
// against the group's other collectives. Sends and receives use rings of their own: they may run beside collectives,
// but those to (or from) one peer are to be launched in order on one stream, or ordered by the caller. Streams outlive
// the group.
//
// Destroying it ends nothing: kernels that are queued run to their end, or until their timeout. abort() ends them, and
// so does the loss of a rank that they may be waiting for. A fault of one kernel ends all of the group, of collectives
// and messages alike.
//
// Threads: any, but collectives are launched one at a time, in the order in which the other ranks launch them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "engine/communicator.hpp"
#include "engine/device_hook.hpp"
#include "gpu_comm/barrier_descriptor.hpp"
#include "gpu_comm/peer_links.hpp"
#include "gpu_comm/workspace/arrivals.hpp"
#include "ipc/arena.hpp"
#include "ipc/stream_order.hpp"
#include "kernels/zero_copy/collectives.hpp"

namespace axon::gpu_comm {

// What ranks are about to do that meet around data which they move themselves: all the same.
struct StreamBarrier {
  cuda::DeviceOperation operation{};
  DataType dtype{};
  BarrierDescriptor descriptor{};
  std::chrono::milliseconds timeout{0};
};

class DeviceGroup final : public engine::DeviceHook {
 public:
  // Takes a slice of the device's arena and sends this rank's address to the others. Waits for nobody. `timeout` is for
  // every later wait: the host's for a peer's address, and a kernel's for a peer where the operation brings none.
  // `round`: how often the communicator has given its GPU side up before, the same on all ranks.
  static Result<std::unique_ptr<DeviceGroup>> form(engine::Communicator& communicator, int device,
                                                   std::chrono::milliseconds timeout, uint32_t round = 0);
  ~DeviceGroup();

  int device() const noexcept { return device_; }

  // Whether this rank and `peer` reach each other's arenas; both get the same answer. The first call waits until the
  // peer has formed its side ("Timed out … rank 2 has not used a GPU in this group yet"), later ones cost nothing.
  Result<bool> has_link(int peer);

  // The same for all pairs of the group. The first call is a collective: all ranks make it at the same place in the
  // order of their collectives.
  Result<bool> has_all_links();

  // Why this rank's kernels do not reach `peer`, as far as this rank can tell; ok where they do. Ask after has_link().
  Status obstacle_to(int peer) const;

  // Whether a kernel does it; ask after has_link(), has_all_links(). False: take the way through the host.
  bool serves(const engine::Operation& operation) const noexcept;

  // Enqueues an operation that is served, its buffers in device memory, and returns. The arguments may go at once. Each
  // rank knows for itself what runs beside it.
  Status launch(const engine::Operation& operation, cuda::StreamView stream,
                kernels::zero_copy::Beside beside = kernels::zero_copy::Beside::kNothing);
  // Sends and receives that run at the same time, in one kernel: no order among them can make them wait for ever. Of
  // several to (or from) one peer, the next one runs after the kernel with the first.
  Status launch_batch(std::span<const engine::Operation* const> point_to_points, cuda::StreamView stream);

  // Enqueues a barrier of all ranks' streams, where has_all_links(): behind it a stream sees what the others held
  // before it, and they do not use any more what they used there.
  Status enqueue_barrier(const StreamBarrier& barrier, cuda::StreamView stream);
  // Their waits end once the group has failed.
  void watch(std::shared_ptr<Arrivals> arrivals);
  // Behind a meeting, on any stream that follows it: waits until all peers have told of the tile. The next meeting
  // comes behind all these waits.
  Status await(const Arrivals& arrivals, int tile, cuda::StreamView stream);

  // Whether CUDA graphs hold kernels of the group: they share it with the group, or with what it leaves behind.
  std::weak_ptr<void> graphs() const;

  // Operations that kernels have done on the peers' tensors themselves: a statistic. Asks the device, behind nothing.
  Result<uint64_t> num_zero_copy() const { return total(&cuda::TeamState::num_zero_copy); }
  // The same of messages that this rank has sent or received.
  Result<uint64_t> num_zero_copy_messages() const { return total(&cuda::TeamState::num_zero_copy_messages); }

  // Of the GPU: the arena, which the process's groups share, and the group's part of it. 0: it has none.
  size_t arena_bytes() const noexcept { return slice_.num_bytes == 0 ? 0 : arena_->num_bytes(); }
  size_t slice_bytes() const noexcept { return slice_.num_bytes; }

  // Ends what runs and all that comes. Idempotent, any thread.
  void abort() noexcept;

  // DeviceHook; of the communicator from form() to the destructor.
  void on_failed(const Status& reason) noexcept override;
  void on_rank_lost(int rank, const Status& reason) noexcept override;
  // What a kernel has reported: which wait ended, or what the other side called.
  Status fault() noexcept override;

 private:
  DeviceGroup(engine::Communicator& communicator, int device, std::chrono::milliseconds timeout, cuda::Event event);

  Status take_slice();
  Result<uint64_t> total(uint32_t cuda::TeamState::* counter) const;
  void build_team(PeerAccess access, const cuda::TeamLayout& layout);
  void connect(int rank, PeerAccess access);
  void heed_loss(int rank) noexcept;
  bool tell_who_is_gone() noexcept;
  const Status& loss_of(int rank) const noexcept;
  Status check_addressee(const engine::Operation& message);
  PeerAccess access_for(const engine::Operation& operation) const noexcept;
  cuda::DeviceTeam team_for(PeerAccess access, std::chrono::milliseconds timeout) const noexcept;
  void abort(Status reason) noexcept;
  template <typename Launch>
  Status launch_in_order(cuda::StreamView stream, Launch launch);

  engine::Communicator& communicator_;
  const int device_;
  const std::chrono::milliseconds timeout_;
  ipc::Arena* arena_ = nullptr;       // none: this rank reaches nobody
  ipc::ArenaSlice slice_;             // none without an arena
  Status without_slice_;              // why there is none
  std::shared_ptr<PeerLinks> links_;  // beside the engine, which has its control messages under way

  // A slice holds two teams: one for which all slices have room, and one for which the large ones have. Which one a
  // pair, or the whole group, uses follows from the smallest slice in it, so nobody's layout depends on what others
  // got.
  static constexpr size_t kNumTeams = 2;

  mutable std::mutex mutex_;  // guards these, and the order of launches
  ipc::StreamOrder order_;
  std::array<cuda::DeviceTeam, kNumTeams> teams_{};                         // by PeerAccess, from kSmall
  std::array<std::optional<PeerAccess>, cuda::kMaxTeamRanks> peer_access_;  // agreed with each rank
  std::optional<PeerAccess> access_of_all_;
  // A bit a rank that kernels may wait for. Relaxed: set before the first of them is launched, read once it is lost.
  std::atomic<uint32_t> connected_{0};

  // Guards these; held for moments only, since the progress owner takes it, too.
  std::mutex fate_mutex_;
  Status reason_;                                   // why the kernels were told to end
  std::array<Status, cuda::kMaxTeamRanks> losses_;  // of each rank that is gone
  Status loss_;                                     // the first of a rank that kernels may wait for
  sync::Clock::time_point lost_at_{};
  std::vector<std::shared_ptr<Arrivals>> watched_;
};

}  // namespace axon::gpu_comm
