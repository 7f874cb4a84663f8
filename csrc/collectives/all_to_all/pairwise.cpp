// Pairwise exchange: in step d every rank sends to the rank d up the ring and receives from the rank d down.
//
// n−1 steps, kDepth of them in flight. A rank sends and receives each of its shards once, straight into place, and in
// every step each rank is the target of one other. Thakur, Rabenseifner, Gropp (2005), section 4.3.
#include "collectives/algorithms.hpp"
#include "collectives/batch_ring.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> all_to_all::pairwise(messaging::View& view, const CollectiveArguments& arguments) {
  constexpr size_t kDepth = 8;
  const int size = view.size();
  const int rank = view.rank();
  const size_t element_num_bytes = size_of(arguments.dtype);

  BatchRing<kDepth> steps(view);
  for (int distance = 1; distance < size; ++distance) {
    const int source = ring_neighbour(rank, -distance, size);
    const int destination = ring_neighbour(rank, distance, size);
    messaging::Batch& step = steps[static_cast<size_t>(distance)];
    AXON_CO_TRY(co_await step);
    step.receive({.peer = source, .num_back = arguments.inputs[source].num_bytes / element_num_bytes},
                 arguments.outputs[source]);
    step.send({.peer = destination, .num_back = arguments.outputs[destination].num_bytes / element_num_bytes},
              arguments.inputs[destination]);
  }
  copy_shard(arguments.outputs[rank], arguments.inputs[rank]);
  for (size_t i = 0; i < kDepth; ++i) AXON_CO_TRY(co_await steps[i]);
  co_return Status();
}

}  // namespace axon::collectives
