// A process's memory on one GPU for the kernels of its groups, mapped by its peers: flags, packets and rings, no
// tensors.
//
//   Result<Arena*> arena = Arena::of(device);
//   Result<ArenaSlice> slice = arena.value()->take();      // one a group, all zeros; the first makes AXON_ARENA_MB
//   DeviceAddress address = arena.value()->address_of(slice.value());  // to the peers; theirs:
//   Result<std::shared_ptr<const ArenaView>> view = arena.value()->view_of(their_address);   // mapped once, for all
//   groups
//
// A slice comes back when no peer's kernel can still write into it. Each peer says so when it leaves the group, behind
// its last kernel, by a word that its stream stores into our table of notices (the arena's first MiB: a row a slice,
// a word a rank). So leaving waits for nobody and sends no message. A peer that ends without a word takes its kernels
// with it, and CUDA graphs that hold such kernels leave with the last of them. A slice that is never left stays taken.
//
// Lives as long as the process. Its memory may be given back while no group holds a slice: the next one makes it anew,
// and addresses tell by their edition which one they are about. What a peer had shared goes once its process has ended
// and no group uses it, at the latest when the next group takes a slice. Any thread.
#pragma once

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

namespace axon::ipc {

// A member of a group that holds a slice of ours, or whose slice we hold.
struct PeerSlice {
  int rank = -1;
  std::shared_ptr<const ArenaView> arena;  // theirs
  ArenaSlice slice;                        // of theirs
};

// A rank leaves a group.
struct DetachNotice {
  int rank = -1;
  ArenaSlice slice;                     // its own
  std::vector<PeerSlice> slice_owners;  // of the slices that it may have written into, its own too
  std::vector<PeerSlice> slice_users;   // who may still write into its own
  std::shared_ptr<void> graphs;         // shared with CUDA graphs that hold its kernels, and nobody else
};

class Arena {
 public:
  static Result<Arena*> of(int device);

  // Of all devices: the memory of arenas, and of their peers' as mapped here, that no group of this process uses any
  // more. Looks for a tenth of a second for slices that are to come back.
  static void give_back_unused() noexcept;

  // Loads the kernels for groups of so many ranks.
  Status prepare(int num_ranks);

  // Zeros; fails with kResourceExhausted when the arena is full, after a tenth of a second if slices are to come back.
  Result<ArenaSlice> take();

  // The slice owners are told behind what these streams hold now, and once the graphs are gone. The rank's own slice
  // comes back as soon as all slice users have left. Waits for nobody.
  void detach(DetachNotice notice, std::span<const cuda::StreamView> streams);

  DeviceAddress address_of(ArenaSlice slice) const;
  // The arena of a peer, of this process or another, as kernels of this device see it: to be kept as long as they may.
  Result<std::shared_ptr<const ArenaView>> view_of(const DeviceAddress& address);

  // Random, for the life of the process.
  uint64_t incarnation() const noexcept { return incarnation_; }
  // As long as a slice is taken.
  std::byte* data() const noexcept { return memory_->data(); }
  size_t num_bytes() const noexcept { return num_bytes_; }
  // This device's tensors for the peers' kernels, and theirs for ours.
  Registrations& registrations() const noexcept { return *registrations_; }
  // Of all groups on this device.
  LaunchLedger& launches() noexcept { return launches_; }
  // Pinned, and zeros, as long as the slice is taken: two a slice.
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
  std::optional<cuda::Stream> upkeep_;         // clears slices and reads notices
  std::optional<cuda::Stream> detach_stream_;  // may wait for kernels: nothing that somebody waits for goes here

  // Stays while a slice is taken, so groups use it without the lock.
  std::optional<cuda::SharedMemory> memory_;
  FileDescriptor shared_;
  uint64_t edition_ = 0;  // how often there has been memory

  std::mutex mutex_;  // guards all below, and the making and giving back of the memory
  std::set<int> prepared_;
  SliceAllocator slices_;
  std::vector<DetachNotice> lingering_;                   // wait for their graphs
  std::vector<DetachNotice> detached_;                    // wait for their slice users
  std::vector<DetachNotice> lost_;                        // could not be told: all that they use stays
  std::map<uint64_t, std::shared_ptr<ArenaView>> views_;  // by incarnation
  bool has_told_ = false;                                 // that it is full
};

}  // namespace axon::ipc
