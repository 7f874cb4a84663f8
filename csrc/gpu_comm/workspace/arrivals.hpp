// That tiles of data which ranks push to each other by copies have come: told from stream to stream without a kernel,
// which might find no room beside others.
//
//   AXON_TRY(group->enqueue_barrier(…));  // the words of the last round have been read
//   copy_async(…); AXON_TRY(arrivals->tell(peer, tile, stream));    // to every peer
//   AXON_TRY(arrivals->await(tile, stream));                        // behind it the tiles of all peers are here
//
// Between two meetings a rank tells every peer of each tile once, and awaits it once. The words are not counts but 0
// or positive, so graphs replay. Each rank has a page of them in the host's memory, which its peers map: so they can be
// set without CUDA, too. Only that ends a wait for a peer that does not tell: give_up(), once the group has failed.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "gpu_comm/workspace/shared_page.hpp"
#include "gpu_comm/workspace/wait_ender.hpp"

namespace axon::gpu_comm {

inline constexpr int kMaxTiles = 8;  // of what a stream pushes to a peer in one operation

class Arrivals {
 public:
  struct Team {
    int device = 0;
    int rank = 0;
    int num_ranks = 0;  // ≤ kMaxTeamRanks
  };

  // With this rank's words; the peers' are to be mapped before anything is told.
  static Result<std::unique_ptr<Arrivals>> create(const Team& team);
  // No wait is ended any more. The memory is given back once nothing of ours may run on the device, perhaps with that
  // of later ones.
  ~Arrivals();

  // Of this rank's words, for the peers.
  int descriptor() const noexcept { return words_[index_of(team_.rank)]->page.descriptor().get(); }
  Status map(int peer, const FileDescriptor& words);

  // Behind all that the stream holds. `tile` < kMaxTiles.
  Status tell(int peer, int tile, cuda::StreamView stream) const;
  Status await(int tile, cuda::StreamView stream) const;

  // Ends all waits, and those that come later, within 10 ms each. Never blocks. Idempotent.
  void give_up() noexcept { ender_->begin(); }

 private:
  // A rank's, by sender and tile: positive once the tile has been pushed to it, until its stream has seen that.
  struct Words {
    SharedPage page;
    cuda::RegisteredMemory on_device;
  };
  struct Retired;

  explicit Arrivals(const Team& team) : team_(team), words_(index_of(team.num_ranks)) {}
  static size_t index_of(int rank) noexcept { return static_cast<size_t>(rank); }
  static size_t index_of(int sender, int tile) noexcept { return index_of(sender * kMaxTiles + tile); }
  uint32_t* word(int receiver, int sender, int tile) const noexcept;
  Status adopt(int rank, Result<SharedPage> page);

  const Team team_;
  std::vector<std::optional<Words>> words_;  // by rank
  std::optional<WaitEnder> ender_;           // of this rank's
};

}  // namespace axon::gpu_comm
