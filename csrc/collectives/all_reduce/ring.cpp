// Ring: a ring reduce_scatter, then a ring all_gather, both pipelined in chunks.
//
// 2·(n−1) steps. A rank sends and receives 2·(n−1)/n of the tensor, the first half of it as partial results (fp32 for
// half types). It only exchanges messages with its two neighbours. Patarasuk, Yuan (2009). Wins for large tensors on
// many ranks, where direct exchange would keep too many partners busy at once.
#include "collectives/ring.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

Task<Status> all_reduce::ring(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer tensor = arguments.outputs[0];
  const int size = view.size();
  const Partition parts(tensor.num_bytes, size);
  PoolArray<Buffer> results(view.size_class_pool(), size);
  PoolArray<ConstBuffer> contributions(view.size_class_pool(), size);
  for (int owner = 0; owner < size; ++owner) contributions[owner] = results[owner] = slice(tensor, parts[owner]);

  const RingReduction reduction{.shards = contributions, .output = results[view.rank()]};
  AXON_CO_TRY(co_await ring_reduce_scatter(view, arguments, reduction));
  const RingGather gathering{.shards = results};
  co_return co_await ring_all_gather(view, gathering);
}

}  // namespace axon::collectives
