// Direct: each rank sends its shard to the root, which receives all of them at once, straight into place.
//
// One step. A rank sends its shard, the root receives n−1. No algorithm moves fewer bytes; a tree would save the root
// messages only for very many, very small shards.
#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> gather::direct(messaging::View& view, const CollectiveArguments& arguments) {
  const ConstBuffer own = arguments.inputs[0];
  const int size = view.size();
  const int root = arguments.root;

  messaging::Batch batch(view);
  if (view.rank() != root) {
    batch.send({.peer = root}, own);
    co_return co_await batch;
  }
  for (int distance = 1; distance < size; ++distance) {
    const int source = ring_neighbour(root, distance, size);
    batch.receive({.peer = source}, arguments.outputs[source]);
  }
  copy_shard(arguments.outputs[root], own);
  co_return co_await batch;
}

}  // namespace axon::collectives
