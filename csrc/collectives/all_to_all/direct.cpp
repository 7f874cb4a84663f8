// Direct: sends and receives all shards at once. For stages among one rank of each host, whose shards are few and long.
#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> all_to_all::direct(messaging::View& view, const CollectiveArguments& arguments) {
  messaging::Batch batch(view);
  for (int distance = 1; distance < view.size(); ++distance) {
    const int source = ring_neighbour(view.rank(), -distance, view.size());
    const int destination = ring_neighbour(view.rank(), distance, view.size());
    batch.receive({.peer = source}, arguments.outputs[source]);
    batch.send({.peer = destination}, arguments.inputs[destination]);
  }
  copy_shard(arguments.outputs[view.rank()], arguments.inputs[view.rank()]);
  co_return co_await batch;
}

}  // namespace axon::collectives
