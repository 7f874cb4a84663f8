// Direct: the root sends every rank its shard.
//
// One step. The root sends n−1 shards, any other rank receives its own. No algorithm moves fewer bytes; a tree would
// save the root messages only for very many, very small shards.
#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> scatter::direct(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer own = arguments.outputs[0];
  const int size = view.size();
  const int root = arguments.root;

  messaging::Batch batch(view);
  if (view.rank() != root) {
    batch.receive({.peer = root}, own);
    co_return co_await batch;
  }
  for (int distance = 1; distance < size; ++distance) {
    const int destination = ring_neighbour(root, distance, size);
    batch.send({.peer = destination}, arguments.inputs[destination]);
  }
  copy_shard(own, arguments.inputs[root]);
  co_return co_await batch;
}

}  // namespace axon::collectives
