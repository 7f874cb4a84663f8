// Direct: every rank sends each other rank its contribution to that rank's shard, and reduces those to its own.
//
// One step per chunk, chunks pipelined. A rank sends, receives and reduces (n−1)/n of the whole. The operands are taken
// in rank order and rounded once. This is the pairwise exchange of Thakur, Rabenseifner, Gropp (2005), section 4.6,
// with all partners at once. Wins for few ranks at any size.
#include "collectives/algorithms.hpp"
#include "collectives/direct_reduction.hpp"

namespace axon::collectives {

Task<Status> reduce_scatter::direct(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer own = arguments.outputs[0];
  DirectReduction reduction(view, arguments, arguments.inputs);

  for (size_t step = 0; step < reduction.num_steps(); ++step) {
    if (reduction.posts(step)) {
      AXON_CO_TRY(co_await reduction.departures(step));
      reduction.post(step);
    }
    if (!reduction.reduces(step)) continue;
    const size_t chunk = step - reduction.ahead();
    AXON_CO_TRY(co_await reduction.arrivals(chunk));
    reduction.reduce(chunk, slice(own, reduction.chunks_of(own.num_bytes)[chunk]));
  }
  for (size_t i = 0; i < reduction.depth(); ++i) AXON_CO_TRY(co_await reduction.departures(i));
  co_return Status();
}

}  // namespace axon::collectives
