// Signals between streams that tiles of data have arrived, which ranks push to each other by copies. No kernel is used,
// since the multiprocessors may have no room for one.
//
//   AXON_TRY(group->enqueue_barrier(…));               // the flags of the last round have been read
//   copy_async(…);
//   AXON_TRY(arrivals->tell(peer, tile, stream));      // for every peer
//   AXON_TRY(arrivals->await(tile, stream));           // later work sees the tiles of all peers
//
// Between two barriers a rank signals each tile once to every peer, and awaits it once. A flag holds no count but is 0
// or positive, so graphs can be replayed. Each rank's flags are in a page of host memory, which its peers map. They can
// therefore be set without CUDA, too. Only this ends a wait for a peer that never signals: give_up() sets the flags
// after the group has failed.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "gpu_comm/workspace/wait_ender.hpp"
#include "memory/shared_pages.hpp"

namespace axon::gpu_comm {

inline constexpr int kMaxTiles = 8;  // limit of tiles that a stream pushes to a peer in one operation

class Arrivals {
 public:
  struct Team {
    int device = 0;
    int rank = 0;
    int num_ranks = 0;  // ≤ kMaxTeamRanks
  };

  // Allocates this rank's flags. Map the peers' flags before the first signal.
  static Result<std::unique_ptr<Arrivals>> create(const Team& team);
  // From here on no wait is ended. The memory is given back once none of our kernels may run on the device, perhaps
  // together with that of later objects.
  ~Arrivals();

  // Descriptor of this rank's flags, for the peers.
  int descriptor() const noexcept { return flags_[index_of(team_.rank)]->page.descriptor(); }
  Status map(int peer, FileDescriptor flags);

  // Signals after all work that the stream holds; `tile` < kMaxTiles.
  Status tell(int peer, int tile, cuda::StreamView stream) const;
  Status await(int tile, cuda::StreamView stream) const;

  // Ends all current and later waits within 10 ms each. Never blocks. Idempotent.
  void give_up() noexcept { ender_->begin(); }

 private:
  // A rank's flags, by sender and tile. A flag is positive from when the tile was pushed to the rank until the rank's
  // stream has seen that.
  struct Flags {
    SharedPages page;
    cuda::RegisteredMemory on_device;
  };
  struct Retired;

  explicit Arrivals(const Team& team) : team_(team), flags_(index_of(team.num_ranks)) {}
  static size_t index_of(int rank) noexcept { return static_cast<size_t>(rank); }
  static size_t index_of(int sender, int tile) noexcept { return index_of(sender * kMaxTiles + tile); }
  uint32_t* flag(int receiver, int sender, int tile) const noexcept;
  Status adopt(int rank, Result<SharedPages> page);

  const Team team_;
  std::vector<std::optional<Flags>> flags_;  // by rank
  std::optional<WaitEnder> ender_;           // for this rank's flags
};

}  // namespace axon::gpu_comm
