// Ring: every rank passes to its right neighbour what it has received from its left one, starting with its own shard.
//
// n−1 steps per chunk, chunks pipelined. A rank sends and receives the n−1 other shards, straight into place, and only
// exchanges messages with its neighbours. Thakur, Rabenseifner, Gropp (2005), section 4.1. Wins for large shards on
// many ranks.
#include "collectives/ring.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"

namespace axon::collectives {

Task<Status> all_gather::ring(messaging::View& view, const CollectiveArguments& arguments) {
  copy_shard(arguments.outputs[static_cast<size_t>(view.rank())], arguments.inputs[0]);
  const RingGather gathering{.shards = arguments.outputs};
  co_return co_await ring_all_gather(view, gathering);
}

}  // namespace axon::collectives
