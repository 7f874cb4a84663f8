// Dissemination: in step k every rank notifies the rank 2^k up the ring, and waits for the rank 2^k down.
//
// ⌈log2 n⌉ steps of one empty message. After all steps, a rank has heard from every other rank, directly or through
// others. Hensgen, Finkel, Manber, "Two Algorithms for Barrier Synchronization" (1988).
#include "collectives/algorithms.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> barrier::dissemination(messaging::View& view, const CollectiveArguments&) {
  const int size = view.size();
  const int rank = view.rank();

  messaging::Batch batch(view);
  uint32_t slot = 0;
  for (int distance = 1; distance < size; distance *= 2, ++slot) {
    batch.receive({.peer = ring_neighbour(rank, -distance, size), .slot = slot}, {});
    batch.send({.peer = ring_neighbour(rank, distance, size), .slot = slot}, {});
    AXON_CO_TRY(co_await batch);
  }
  co_return Status();
}

}  // namespace axon::collectives
