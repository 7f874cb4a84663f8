// That pieces of data which ranks push to each other by copies have come: told from stream to stream without a kernel,
// which might find no room beside others.
//
//   AXON_TRY(group->meet(…));                                        // the words of the last round have been read
//   copy_async(…); AXON_TRY(arrivals->tell(peer, piece, stream));    // to every peer
//   AXON_TRY(arrivals->await(piece, stream));                        // behind it the pieces of all peers are here
//
// Between two meetings a rank tells every peer of each piece once, and awaits it once. The words, in the ranks' blocks,
// are not counts but 0 or positive, so graphs replay. Only the peer's word ends such a wait, and give_up(), once the
// group has failed; a meeting that fails ends those behind it.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/stream.hpp"

namespace axon {

class Arrivals {
 public:
  // Of a team all of whose blocks are mapped.
  static Result<std::unique_ptr<Arrivals>> open(const DeviceTeam& team, int device);
  // Waits that are left are not ended any more. Takes as long as setting the words, if that is under way.
  ~Arrivals();

  // Behind all that the stream holds. `piece` < kMaxPieces.
  Status tell(int peer, int piece, StreamView stream) const;
  Status await(int piece, StreamView stream) const;

  // Ends all waits, and those that come later. Neither blocks nor calls CUDA, which the keeper's thread does.
  // Idempotent.
  void give_up() noexcept;

 private:
  struct Registry;

  Arrivals(const DeviceTeam& team, int device, Stream stream);
  uint32_t* word(int receiver, int sender, int piece) const noexcept;
  void end_waits() const noexcept;

  const DeviceTeam team_;
  const int device_;
  const Stream keepers_stream_;
  std::atomic<bool> has_given_up_{false};  // relaxed: publishes nothing else
};

}  // namespace axon
