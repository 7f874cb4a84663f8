// Direct exchange: each rank sends its shard to all other ranks.
//
// One step. A rank sends its shard n−1 times and receives the n−1 others, straight into place. Peers are taken in ring
// order from the own rank on, so that no rank is the first target of all others. Wins for few ranks, and within a host
// at any size.
#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> all_gather::direct(messaging::View& view, const CollectiveArguments& arguments) {
  const ConstBuffer own = arguments.inputs[0];
  const int size = view.size();
  const int rank = view.rank();

  messaging::Batch batch(view);
  for (int distance = 1; distance < size; ++distance) {
    const int source = ring_neighbour(rank, -distance, size);
    batch.receive({.peer = source}, arguments.outputs[source]);
    batch.send({.peer = ring_neighbour(rank, distance, size)}, own);
  }
  copy_shard(arguments.outputs[rank], own);
  co_return co_await batch;
}

}  // namespace axon::collectives
