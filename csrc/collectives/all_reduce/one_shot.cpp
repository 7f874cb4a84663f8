// One shot: each rank sends its tensor to all other ranks, and reduces all tensors itself, in rank order.
//
// One step. A rank sends and reduces n−1 tensors. Wins where a message's latency outweighs its bytes: small tensors,
// few ranks.
#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

Task<Status> all_reduce::one_shot(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer tensor = arguments.outputs[0];
  const int size = view.size();
  const int rank = view.rank();
  const Buffer staging = view.scratch(tensor.num_bytes * static_cast<size_t>(size));
  PoolArray<ConstBuffer> operands(view.size_class_pool(), size);

  messaging::Batch batch(view);
  operands[rank] = tensor;
  for (int distance = 1; distance < size; ++distance) {
    const int peer = ring_neighbour(rank, distance, size);
    const Buffer incoming = staging.slice(tensor.num_bytes * static_cast<size_t>(peer), tensor.num_bytes);
    operands[peer] = incoming;
    batch.receive({.peer = peer}, incoming);
    batch.send({.peer = peer}, tensor);
  }
  AXON_CO_TRY(co_await batch);
  combine(reduction_plan(view, arguments), tensor, operands, tensor.num_bytes / size_of(arguments.dtype));
  co_return Status();
}

}  // namespace axon::collectives
