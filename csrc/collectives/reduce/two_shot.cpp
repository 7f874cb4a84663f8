// Two shots: a direct reduce_scatter, then a gather of the reduced parts at the root, interleaved chunk by chunk.
//
// Two steps per chunk, chunks pipelined. A rank sends at most the whole tensor and reduces (n−1)/n of it, and so does
// the root, which receives 2·(n−1)/n. Rabenseifner (2004), with all partners at once instead of halving and doubling.
// Wins for large tensors: with a tree, the root alone would reduce all of it.
#include "collectives/algorithms.hpp"
#include "collectives/direct_reduction.hpp"

namespace axon::collectives {

static void receive_at_root(messaging::View& view, DirectReduction& reduction, size_t chunk, Buffer output) noexcept {
  const Partition parts(output.num_bytes, view.size());
  for (int owner = 0; owner < view.size(); ++owner) {
    const Buffer part = slice(output, parts[owner]);
    const Chunks chunks = reduction.chunks_of(part.num_bytes);
    if (owner == view.rank() || !chunks.contains(chunk)) continue;
    reduction.departures(chunk).receive({.peer = owner, .slot = reduction.slot_of(chunk) + 1},
                                        slice(part, chunks[chunk]));
  }
}

Task<Status> reduce::two_shot(messaging::View& view, const CollectiveArguments& arguments) {
  const ConstBuffer input = arguments.inputs[0];
  const int size = view.size();
  const bool is_root = view.rank() == arguments.root;
  const Partition parts(input.num_bytes, size);
  PoolArray<ConstBuffer> shards(view.size_class_pool(), size);
  for (int owner = 0; owner < size; ++owner) shards[owner] = slice(input, parts[owner]);
  const Range own = parts[view.rank()];

  DirectReduction reduction(view, arguments, shards);
  const Chunks own_chunks = reduction.chunks_of(own.length);
  for (size_t step = 0; step < reduction.num_steps(); ++step) {
    if (reduction.posts(step)) {
      AXON_CO_TRY(co_await reduction.departures(step));
      reduction.post(step);
      if (is_root) receive_at_root(view, reduction, step, arguments.outputs[0]);
    }
    if (!reduction.reduces(step)) continue;
    const size_t chunk = step - reduction.ahead();
    AXON_CO_TRY(co_await reduction.arrivals(chunk));
    if (!own_chunks.contains(chunk)) continue;
    const Range range = own_chunks[chunk];
    if (is_root) {
      reduction.reduce(chunk, slice(slice(arguments.outputs[0], own), range));
      continue;
    }
    const Buffer result = reduction.spare(chunk).slice(0, range.length);
    reduction.reduce(chunk, result);
    reduction.departures(chunk).send({.peer = arguments.root, .slot = reduction.slot_of(chunk) + 1}, result);
  }
  for (size_t i = 0; i < reduction.depth(); ++i) AXON_CO_TRY(co_await reduction.departures(i));
  co_return Status();
}

}  // namespace axon::collectives
