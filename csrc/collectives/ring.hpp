// The two halves of the ring algorithms, as separate coroutines: rank r receives only from r−1 and sends only to r+1.
//
// Chunks of all shards travel around the ring in small groups: a step of the ring moves one group of one shard. While
// its first chunk is being reduced or stored, the others of the group are on their way. Twice that many buffers or
// messages per direction suffice: what is sent in one step is received in the neighbour's next one. So a wait for a
// buffer always refers to an earlier step, and never leads around the ring to itself. The reduction uses even slots,
// the gathering odd ones, so that one can follow the other.
//
// Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations" (2009).
#pragma once

#include <cstddef>
#include <span>

#include "collectives/collective.hpp"

namespace axon::collectives {

// Reduces all ranks' shards[r] into rank r's `output`. Partial results travel in partial_type() and are rounded once.
// They start at the rank after the owner and end at the owner, so the order of operands depends on the shard only.
// `output` may be the own shard.
struct RingReduction {
  std::span<const ConstBuffer> shards;
  Buffer output;
};
Task<Status> ring_reduce_scatter(messaging::View& view, const CollectiveArguments& arguments, RingReduction ring);

// Brings shards[r], which rank r already has in place, to all ranks. `complete_rank` (if any) has all shards already
// and is sent none.
struct RingGather {
  std::span<const Buffer> shards;
  int complete_rank = -1;
};
Task<Status> ring_all_gather(messaging::View& view, RingGather ring);

}  // namespace axon::collectives
