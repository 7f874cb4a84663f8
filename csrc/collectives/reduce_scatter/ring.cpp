// Ring: the partial result of a shard starts at the rank after its owner, travels around, and ends reduced at the
// owner.
//
// n−1 steps per chunk, chunks pipelined. A rank sends and receives (n−1)/n of the whole (as partial results: fp32 for
// half types), and only exchanges messages with its neighbours. Patarasuk, Yuan (2009). Wins for large shards on many
// ranks.
#include "collectives/ring.hpp"
#include "collectives/algorithms.hpp"

namespace axon::collectives {

Task<Status> reduce_scatter::ring(messaging::View& view, const CollectiveArguments& arguments) {
  const RingReduction reduction{.shards = arguments.inputs, .output = arguments.outputs[0]};
  co_return co_await ring_reduce_scatter(view, arguments, reduction);
}

}  // namespace axon::collectives
