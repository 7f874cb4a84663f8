// Hierarchical: each shard goes to one rank of every host, which passes it on within its host.
//
// Two steps per segment, three on uneven hosts. A rank sends its shard to the ranks of equal local index on the other
// hosts. So each shard leaves its host once per other host, instead of once per other rank. On hosts with more ranks
// than the smallest one, the additional ranks hand their shards to ranks with a column first. Segments of all shards
// pass through the steps side by side. Wins for large shards on hosts with several ranks.
#include "collectives/algorithms.hpp"
#include "collectives/hierarchy.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

namespace {

// One segment of all shards.
class ShardSegment {
 public:
  ShardSegment(const Hierarchy& hosts, Segment segment) noexcept : hosts_(hosts), segment_(segment) {}

  Buffer of(int rank) const noexcept { return segment_.of(hosts_.arguments().outputs[static_cast<size_t>(rank)]); }

  // Hands the shards of ranks without a column to the columns that carry them.
  void hand_over(messaging::Batch& batch) const noexcept {
    const std::span<const int> ranks = hosts_.local_ranks();
    if (!hosts_.has_column()) batch.send({.peer = hosts_.local_index() % hosts_.num_columns()}, of(hosts_.rank()));
    for (int index = hosts_.local_index() + hosts_.num_columns(); hosts_.has_column() && index < hosts_.num_local();
         index += hosts_.num_columns()) {
      batch.receive({.peer = index}, of(ranks[static_cast<size_t>(index)]));
    }
  }

  // Passes on what this rank's column carries to the other ranks of this host, and receives what theirs carry.
  void share(messaging::Batch& batch) const noexcept {
    for (int distance = 1; distance < hosts_.num_local(); ++distance) {
      const int source = ring_neighbour(hosts_.local_index(), -distance, hosts_.num_local());
      const int destination = ring_neighbour(hosts_.local_index(), distance, hosts_.num_local());
      for_each_carried(source, [&](int rank, uint32_t slot) {
        if (rank != hosts_.rank()) batch.receive({.peer = source, .slot = slot}, of(rank));
      });
      const int receiver = hosts_.local_ranks()[static_cast<size_t>(destination)];
      for_each_carried(hosts_.local_index(), [&](int rank, uint32_t slot) {
        if (rank != receiver) batch.send({.peer = destination, .slot = slot}, of(rank));
      });
    }
  }

 private:
  // Calls use(rank, slot) for each rank whose shard this column carries.
  template <typename Use>
  void for_each_carried(int column, Use use) const noexcept {
    if (column >= hosts_.num_columns()) return;
    for (int host = 0; host < hosts_.num_hosts(); ++host) {
      for (int round = 0; round < hosts_.num_rounds(); ++round) {
        const int rank = hosts_.carried(host, column, round);
        if (rank >= 0) use(rank, static_cast<uint32_t>(rank) + 1);  // hand_over() uses slot 0
      }
    }
  }

  const Hierarchy& hosts_;
  const Segment segment_;
};

}  // namespace

static Task<Status> gather_segment(const Hierarchy& hosts, Segment segment) {
  const ShardSegment shard_segment(hosts, segment);
  const size_t first_stage = segment.index * static_cast<size_t>(hosts.num_rounds());
  const messaging::View local = hosts.local(first_stage);
  messaging::Batch batch(local);
  shard_segment.hand_over(batch);
  AXON_CO_TRY(co_await batch);
  PoolArray<Buffer> shards(hosts.size_class_pool(), hosts.num_hosts());
  for (int round = 0; hosts.has_column() && round < hosts.num_rounds(); ++round) {
    for (int host = 0; host < hosts.num_hosts(); ++host) {
      const int rank = hosts.carried(host, hosts.local_index(), round);
      shards[host] = rank < 0 ? Buffer() : shard_segment.of(rank);
    }
    const ConstBuffer own = shards[hosts.host()];
    AXON_CO_TRY(co_await run_stage(hosts.column(first_stage + static_cast<size_t>(round)),
                                   {.kind = transport::OperationKind::kAllGather,
                                    .dtype = hosts.arguments().dtype,
                                    .inputs = {&own, 1},
                                    .outputs = shards}));
  }
  shard_segment.share(batch);
  co_return co_await batch;
}

Task<Status> all_gather::hierarchical(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  copy_shard(arguments.outputs[static_cast<size_t>(view.rank())], arguments.inputs[0]);
  co_return co_await run_segments(hosts, total_of(arguments.outputs), gather_segment);
}

}  // namespace axon::collectives
