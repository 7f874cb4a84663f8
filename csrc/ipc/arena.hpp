// Owns a process's arena on one GPU: memory for the kernels of its groups, which peers map. It holds flags, LL packets
// and LL128 rings, but no tensors.
//
//   Result<Arena*> arena = Arena::of(device);
//   Result<ArenaSlice> slice = arena.value()->take();                  // one per group; the first call allocates
//   DeviceAddress address = arena.value()->address_of(slice.value());  // to be sent to the peers
//   auto view = arena.value()->view_of(peer_address);                  // maps a peer's arena once, for all groups
//
// AXON_ARENA_MB sets the size.
//
// A slice returns to the arena when no peer's kernel can still write into it. Each peer sends a detach notice when it
// leaves the group. After the peer's last kernel, its stream stores a flag into our notice table. That table is the
// first MiB of the arena, with one row per slice and one flag per rank of the host. Leaving therefore waits for no peer
// and sends no message. The kernels of a peer that ends without a notice end with its process. CUDA graphs that hold
// kernels of a group delay the notice until the last of these graphs is destroyed. A slice without all notices stays
// taken.
//
// An arena lives as long as the process. Its memory may be given back while no group holds a slice; the next group
// allocates it again. The edition in an address says which allocation the address refers to. Memory shared by a peer is
// unmapped once the peer's process has ended and no group uses it, at the latest when the next group takes a slice.
//
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/device_types.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "ipc/arena_view.hpp"
#include "ipc/launch_ledger.hpp"
#include "ipc/registrations/registrations.hpp"
#include "ipc/slice_allocator.hpp"
#include "ipc/slice_mapper.hpp"

namespace axon::ipc {

// A member of a group that holds a slice of our arena, or whose slice we hold.
struct PeerSlice {
  int rank = -1;                           // its local index (gpu_comm/local_team.hpp)
  std::shared_ptr<const ArenaView> arena;  // the peer's arena
  ArenaSlice slice;                        // in the peer's arena
};

// Describes a rank that leaves a group.
struct DetachNotice {
  int rank = -1;                        // its local index
  ArenaSlice slice;                     // the rank's own slice
  std::vector<PeerSlice> slice_owners;  // owners of the slices that this rank may have written into, including its own
  std::vector<PeerSlice> slice_users;   // ranks that may still write into this rank's slice
  std::shared_ptr<void> graphs;         // shared only with the CUDA graphs that hold the group's kernels
};

class Arena final : public SliceMapper {
 public:
  static Result<Arena*> of(int device);

  // Gives back memory that no group of this process uses any more: arenas of all devices, and mapped arenas of peers.
  // Waits up to a tenth of a second for slices that are still being detached.
  static void give_back_unused() noexcept;

  // Loads the kernels for groups of `num_ranks` ranks.
  Status prepare(int num_ranks);

  // Returns a zero-initialised slice. Fails with kResourceExhausted when the arena is full; if slices are still being
  // detached, it first waits a tenth of a second for them.
  Result<ArenaSlice> take();

  // Notifies the slice owners after the work that these streams hold now, and after the graphs are destroyed. The
  // rank's own slice is free again once all slice users have detached. Does not block.
  void detach(DetachNotice notice, std::span<const cuda::StreamView> streams);

  DeviceAddress address_of(ArenaSlice slice) const override;
  Result<std::shared_ptr<const ArenaView>> view_of(const DeviceAddress& address) override;

  // A random number, constant for the life of the process.
  uint64_t incarnation() const noexcept { return incarnation_; }
  // Valid as long as a slice is taken.
  std::byte* data() const noexcept { return memory_->data(); }
  size_t num_bytes() const noexcept { return num_bytes_; }
  // This device's tensors for the peers' kernels, and the peers' tensors for ours.
  Registrations& registrations() const noexcept { return *registrations_; }
  // The ledger of all groups on this device.
  LaunchLedger& launches() noexcept { return launches_; }
  // Copies from slices while kernels may write to them, unless `is_taken` says that they are not taken any more. Waits
  // for the copies, which kernels do not delay.
  struct CopyOut {
    void* to;
    const void* from;
    size_t num_bytes;
  };
  Status copy_out(std::span<const CopyOut> copies, const std::function<bool()>& is_taken);
  // Returns two controls per slice, in pinned memory. They are zero-initialised and valid as long as the slice is
  // taken.
  cuda::TeamControl* controls(ArenaSlice slice) const noexcept;

 private:
  Arena(int device, size_t num_units, cuda::PinnedMemory controls);
  static Result<std::unique_ptr<Arena>> create(int device);
  static const Arena* find(uint64_t incarnation);
  Status open();
  Status make_memory();
  Status give_back();
  Status map(ArenaView& view, const DeviceAddress& address) const;
  Status clear(size_t offset, size_t num_bytes) const;
  Result<std::optional<ArenaSlice>> find_room();
  template <typename Predicate>
  Status collect_until(Predicate is_enough);
  Status collect();
  void forget_ended();
  Status follow(std::span<const cuda::StreamView> streams);
  Status notify_owners(const DetachNotice& notice);

  const int device_;
  const size_t num_bytes_;
  const cuda::PinnedMemory controls_;
  const uint64_t incarnation_;
  cuda::DeviceUuid uuid_{};
  LaunchLedger launches_;
  std::unique_ptr<Registrations> registrations_;
  std::optional<cuda::Stream> upkeep_;  // clears slices and reads notices
  std::optional<cuda::Stream>
      detach_stream_;  // may wait for kernels, so no work that a thread waits for is enqueued here

  std::optional<cuda::Stream> copy_out_;
  std::mutex copy_out_mutex_;  // held while slices are read, so that their memory remains; taken before mutex_

  // Remains while a slice is taken, so groups use it without the lock.
  std::optional<cuda::SharedMemory> memory_;
  FileDescriptor shared_;
  uint64_t edition_ = 0;  // how often the memory has been allocated

  std::mutex mutex_;  // guards all members below, and allocating and giving back the memory
  std::set<int> prepared_;
  SliceAllocator slices_;
  std::vector<DetachNotice> lingering_;                   // waiting for their graphs
  std::vector<DetachNotice> detached_;                    // waiting for their slice users
  std::vector<DetachNotice> lost_;                        // could not be sent: everything that they use is kept
  std::map<uint64_t, std::shared_ptr<ArenaView>> views_;  // by incarnation
  bool has_told_ = false;                                 // whether the full arena has been logged
};

}  // namespace axon::ipc
