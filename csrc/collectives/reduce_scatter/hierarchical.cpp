// Hierarchical: reductions within each host of what is destined for each host, then a reduction between hosts.
//
// A rank reduces its host's contributions to the shards that its column carries, one shard per host. It exchanges the
// sums with the ranks of equal local index on the other hosts. With h hosts, (h−1)/h of the whole leave each host,
// instead of g times as much with g ranks on each. On hosts with more ranks than the smallest one, the additional ranks
// get their results from ranks with a column. Segments of all shards pass through the stages side by side. Wins for
// large shards on hosts with several ranks.
#include "collectives/algorithms.hpp"
#include "collectives/hierarchy.hpp"
#include "collectives/levels.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

namespace {

// One segment: this rank's contributions to all shards, by rank, and where its own result goes.
struct ScatterSegment {
  std::span<const ConstBuffer> shards;
  Buffer result;
  Levels levels;
  size_t first_stage;

  ConstBuffer shard(int rank) const noexcept { return rank < 0 ? ConstBuffer() : shards[static_cast<size_t>(rank)]; }
};

}  // namespace

// Adds up this host's contributions to the shards that the columns carry to `host` in this round.
static Task<Status> reduce_for(const Hierarchy& hosts, ScatterSegment segment, int host, int round, Buffer sum) {
  PoolArray<ConstBuffer> contributions(hosts.size_class_pool(), hosts.num_local());
  for (int column = 0; column < hosts.num_columns(); ++column) {
    contributions[column] = segment.shard(hosts.carried(host, column, round));
  }
  const auto stage = static_cast<size_t>(round * hosts.num_hosts() + host);
  co_return co_await run_stage(hosts.local(segment.first_stage + stage),
                               {.kind = transport::OperationKind::kReduceScatter,
                                .dtype = segment.levels.dtype,
                                .reduction = segment.levels.within_hosts,
                                .premul_factor = hosts.arguments().premul_factor,
                                .inputs = contributions,
                                .outputs = {&sum, 1}});
}

// Reduces one round's shards, within this host and between hosts. Returns this column's result in `result`, which is
// the own rank's shard in round 0.
static Task<Status> reduce_round(const Hierarchy& hosts, ScatterSegment segment, int round, Buffer result) {
  messaging::View everyone = hosts.everyone();
  const auto carried_bytes = [&](int host) {
    return hosts.has_column() ? segment.shard(hosts.carried(host, hosts.local_index(), round)).num_bytes : 0;
  };
  size_t num_bytes = 0;
  for (int host = 0; host < hosts.num_hosts(); ++host) num_bytes += carried_bytes(host);
  const Buffer staging = everyone.scratch(num_bytes);
  PoolArray<ConstBuffer> sums(hosts.size_class_pool(), hosts.num_hosts());
  size_t begin = 0;
  for (int host = 0; host < hosts.num_hosts(); ++host) {
    const Buffer sum = staging.slice(begin, carried_bytes(host));
    begin += sum.num_bytes;
    sums[host] = sum;
    AXON_CO_TRY(co_await reduce_for(hosts, segment, host, round, sum));
  }
  if (hosts.has_column()) {
    AXON_CO_TRY(co_await run_stage(hosts.column(segment.first_stage + static_cast<size_t>(round)),
                                   {.kind = transport::OperationKind::kReduceScatter,
                                    .dtype = segment.levels.dtype,
                                    .reduction = segment.levels.between_hosts,
                                    .inputs = sums,
                                    .outputs = {&result, 1}}));
  }
  everyone.release_scratch();
  co_return Status();
}

// Reduces the shards of ranks without a column, each to a rank with one, which sends it to them.
static Task<Status> reduce_for_others(const Hierarchy& hosts, ScatterSegment segment) {
  const auto num_stages = static_cast<size_t>(hosts.num_hosts() * hosts.num_rounds());
  const messaging::View local = hosts.local(segment.first_stage + num_stages);
  messaging::View everyone = hosts.everyone();
  messaging::Batch batch(local);
  if (!hosts.has_column()) batch.receive({.peer = hosts.local_index() % hosts.num_columns()}, segment.result);
  for (int round = 1; round < hosts.num_rounds(); ++round) {
    const int receiver = hosts.has_column() ? hosts.carried(hosts.host(), hosts.local_index(), round) : -1;
    const size_t num_bytes = segment.shard(receiver).num_bytes;
    const Buffer result = everyone.scratch(num_bytes).slice(0, num_bytes);
    AXON_CO_TRY(co_await reduce_round(hosts, segment, round, result));
    if (receiver >= 0) {
      messaging::Batch delivery(local);
      delivery.send({.peer = hosts.topology().local_index_of(receiver)}, result);
      AXON_CO_TRY(co_await delivery);
    }
    everyone.release_scratch();
  }
  co_return co_await batch;
}

static Task<Status> run_stages(const Hierarchy& hosts, ScatterSegment segment) {
  AXON_CO_TRY(co_await reduce_round(hosts, segment, 0, hosts.has_column() ? segment.result : Buffer()));
  if (hosts.num_rounds() > 1) AXON_CO_TRY(co_await reduce_for_others(hosts, segment));
  co_return Status();
}

static size_t first_stage_of(const Hierarchy& hosts, Segment segment) noexcept {
  return segment.index * static_cast<size_t>(hosts.num_hosts() * hosts.num_rounds() + 1);
}

static Task<Status> reduce_scatter_segment(const Hierarchy& hosts, Segment segment) {
  const CollectiveArguments& arguments = hosts.arguments();
  PoolArray<ConstBuffer> shards(hosts.size_class_pool(), hosts.topology().num_ranks());
  for (int rank = 0; rank < hosts.topology().num_ranks(); ++rank) {
    shards[rank] = segment.of(arguments.inputs[static_cast<size_t>(rank)]);
  }
  co_return co_await run_stages(hosts, {.shards = shards,
                                        .result = segment.of(arguments.outputs[0]),
                                        .levels = levels_of(arguments),
                                        .first_stage = first_stage_of(hosts, segment)});
}

static Task<Status> reduce_scatter_widened(const Hierarchy& hosts, Segment segment) {
  const CollectiveArguments& arguments = hosts.arguments();
  messaging::View everyone = hosts.everyone();
  const ReductionPlan plan = reduction_plan(everyone, arguments);
  const Buffer result = segment.of(arguments.outputs[0]);
  const size_t result_length = partial_bytes(arguments.dtype, result.num_bytes);
  size_t length = result_length;
  for (const ConstBuffer& input : arguments.inputs) {
    length += partial_bytes(arguments.dtype, segment.of(input).num_bytes);
  }
  const Buffer staging = everyone.scratch(length);
  const Buffer widened_result = staging.slice(0, result_length);
  PoolArray<ConstBuffer> shards(hosts.size_class_pool(), hosts.topology().num_ranks());
  size_t begin = result_length;
  for (int rank = 0; rank < hosts.topology().num_ranks(); ++rank) {
    const ConstBuffer shard = segment.of(arguments.inputs[static_cast<size_t>(rank)]);
    const Buffer widened = staging.slice(begin, partial_bytes(arguments.dtype, shard.num_bytes));
    begin += widened.num_bytes;
    begin_partial(plan, widened, shard, shard.num_bytes / size_of(arguments.dtype));
    shards[rank] = widened;
  }
  AXON_CO_TRY(co_await run_stages(hosts, {.shards = shards,
                                          .result = widened_result,
                                          .levels = widened_levels_of(arguments),
                                          .first_stage = first_stage_of(hosts, segment)}));
  finish_partial(plan, result, widened_result, result.num_bytes / size_of(arguments.dtype));
  everyone.release_scratch();
  co_return Status();
}

Task<Status> reduce_scatter::hierarchical(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  co_return co_await run_segments(hosts, total_of(arguments.inputs), reduce_scatter_segment);
}

Task<Status> reduce_scatter::hierarchical_exact(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  const SegmentRunner run = is_half(arguments.dtype) ? reduce_scatter_widened : reduce_scatter_segment;
  co_return co_await run_segments(hosts, total_of(arguments.inputs), run);
}

}  // namespace axon::collectives
