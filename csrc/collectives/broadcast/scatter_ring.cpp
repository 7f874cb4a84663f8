// Scatter and ring: the root scatters the tensor in n parts, which a ring all_gather then distributes.
//
// n steps, those of the ring pipelined in chunks. The root sends 2·(n−1)/n of the tensor; every other rank receives it
// once and sends at most as much. Barnett, Shuler, van de Geijn et al., "Interprocessor Collective Communication
// Library" (1994). Wins above 64 KiB on more than eight hosts. Within a host, whose ranks read each
// other's memory, its many steps cost more than the longer path of a tree.
#include "collectives/algorithms.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"
#include "collectives/ring.hpp"

namespace axon::collectives {

Task<Status> broadcast::scatter_ring(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer tensor = arguments.outputs[0];
  const int size = view.size();
  const int rank = view.rank();
  const int root = arguments.root;
  const Partition parts(tensor.num_bytes, size);
  PoolArray<Buffer> shards(view.size_class_pool(), size);
  for (int owner = 0; owner < size; ++owner) {
    shards[owner] = slice(tensor, parts[ring_neighbour(owner, -root, size)]);
  }

  messaging::Batch dealing(view);
  if (rank != root) {
    dealing.receive({.peer = root}, shards[rank]);
    AXON_CO_TRY(co_await dealing);
  }
  for (int distance = 1; rank == root && distance < size; ++distance) {
    const int owner = ring_neighbour(root, distance, size);
    dealing.send({.peer = owner}, shards[owner]);
  }
  const RingGather gathering{.shards = shards, .complete_rank = root};
  AXON_CO_TRY(co_await ring_all_gather(view, gathering));
  co_return co_await dealing;
}

}  // namespace axon::collectives
