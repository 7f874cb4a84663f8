// Bruck: every rank passes on all shards that it has, doubling their number in each step.
//
// ⌈log2 n⌉ steps. A rank sends and receives the n−1 other shards once, through staging memory, from which they are
// copied into place. Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient Algorithms for All-to-All Communications in
// Multiport Message-Passing Systems" (1997). Wins for small shards on many ranks.
#include <algorithm>

#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

Task<Status> all_gather::bruck(messaging::View& view, const CollectiveArguments& arguments) {
  const int size = view.size();
  const int rank = view.rank();
  // Staging holds the shards in sequence, starting with the own one: position p is the shard of rank + p.
  const auto shard_at = [&](int position) { return arguments.outputs[ring_neighbour(rank, position, size)]; };
  PoolArray<size_t> offsets(view.size_class_pool(), size + 1);
  for (int i = 0; i < size; ++i) offsets[i + 1] = offsets[i] + shard_at(i).num_bytes;
  const Buffer staging = view.scratch(offsets[size]);
  const auto shards = [&](int begin, int end) { return staging.slice(offsets[begin], offsets[end] - offsets[begin]); };

  messaging::Batch batch(view);
  copy_shard(staging, arguments.inputs[0]);
  uint32_t slot = 0;
  for (int held = 1; held < size; held *= 2, ++slot) {
    const int wanted = std::min(held, size - held);
    batch.send({.peer = ring_neighbour(rank, -held, size), .slot = slot}, shards(0, wanted));
    batch.receive({.peer = ring_neighbour(rank, held, size), .slot = slot}, shards(held, held + wanted));
    AXON_CO_TRY(co_await batch);
  }
  for (int i = 0; i < size; ++i) copy_shard(shard_at(i), shards(i, i + 1));
  co_return Status();
}

}  // namespace axon::collectives
