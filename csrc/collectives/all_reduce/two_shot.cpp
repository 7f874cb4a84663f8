// Two shots: a direct reduce_scatter, then a direct all_gather, interleaved chunk by chunk.
//
// Two steps per chunk. Chunks are pipelined: while one is being reduced, contributions to the next are on their way,
// and the results of earlier ones are being fetched. A rank sends and receives 2·(n−1)/n of the tensor, which is the
// minimum, and reduces (n−1)/n of it; operands in rank order, rounded once. Rabenseifner, "Optimization of Collective
// Reduction Operations" (2004), with all partners at once instead of halving and doubling. Wins for large tensors up to
// some dozen ranks.
#include "collectives/algorithms.hpp"
#include "collectives/direct_reduction.hpp"

namespace axon::collectives {

// Sends the reduced chunk of this rank's part to all other ranks.
static void share_result(messaging::View& view, DirectReduction& reduction, size_t chunk, ConstBuffer result) noexcept {
  for (int distance = 1; distance < view.size(); ++distance) {
    const int peer = ring_neighbour(view.rank(), distance, view.size());
    reduction.departures(chunk).send({.peer = peer, .slot = reduction.slot_of(chunk) + 1}, result);
  }
}

// Receives the other ranks' results in place of this rank's contributions: a rank that sends a result has already
// fetched the contribution to it.
static void receive_results(messaging::View& view, DirectReduction& reduction, size_t chunk, Buffer tensor) noexcept {
  const Partition parts(tensor.num_bytes, view.size());
  for (int distance = 1; distance < view.size(); ++distance) {
    const int owner = ring_neighbour(view.rank(), -distance, view.size());
    const Buffer part = slice(tensor, parts[owner]);
    const Chunks chunks = reduction.chunks_of(part.num_bytes);
    if (!chunks.contains(chunk)) continue;
    reduction.departures(chunk).receive({.peer = owner, .slot = reduction.slot_of(chunk) + 1},
                                        slice(part, chunks[chunk]));
  }
}

Task<Status> all_reduce::two_shot(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer tensor = arguments.outputs[0];
  const int size = view.size();
  const Partition parts(tensor.num_bytes, size);
  PoolArray<ConstBuffer> shards(view.size_class_pool(), size);
  for (int owner = 0; owner < size; ++owner) shards[owner] = slice(tensor, parts[owner]);
  const Buffer own = slice(tensor, parts[view.rank()]);

  DirectReduction reduction(view, arguments, shards);
  const Chunks own_chunks = reduction.chunks_of(own.num_bytes);
  for (size_t step = 0; step < reduction.num_steps(); ++step) {
    if (reduction.posts(step)) {
      AXON_CO_TRY(co_await reduction.departures(step));
      reduction.post(step);
      receive_results(view, reduction, step, tensor);
    }
    if (!reduction.reduces(step)) continue;
    const size_t chunk = step - reduction.ahead();
    AXON_CO_TRY(co_await reduction.arrivals(chunk));
    if (!own_chunks.contains(chunk)) continue;
    const Buffer result = slice(own, own_chunks[chunk]);
    reduction.reduce(chunk, result);
    share_result(view, reduction, chunk, result);
  }
  for (size_t i = 0; i < reduction.depth(); ++i) AXON_CO_TRY(co_await reduction.departures(i));
  co_return Status();
}

}  // namespace axon::collectives
