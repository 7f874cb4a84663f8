// Hierarchical: a reduce_scatter within each host, a reduction of each part at the root's host, and a gather there.
//
// Each rank with a column reduces a part of every segment within its host. The ranks of equal local index then reduce
// that part at the root's host. The tensor leaves each other host once. Segments pass through the stages side by side.
// Wins for large tensors on hosts with several ranks.
#include "collectives/algorithms.hpp"
#include "collectives/hierarchy.hpp"
#include "collectives/levels.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

namespace {

struct ReduceSegment {
  ConstBuffer input;
  Buffer output;  // empty at all ranks but the root
  Levels levels;
  size_t index;
};

}  // namespace

static int root_host(const Hierarchy& hosts) noexcept {
  return hosts.topology().host_of(hosts.arguments().root);
}

// Brings the parts that are reduced at the root's host to the root.
static void gather_parts(const Hierarchy& hosts, messaging::Batch& batch, ReduceSegment segment, ConstBuffer own) {
  const int root = hosts.topology().local_index_of(hosts.arguments().root);
  const Partition parts(segment.input.num_bytes, hosts.num_columns());
  if (hosts.host() != root_host(hosts)) return;
  if (hosts.rank() != hosts.arguments().root) {
    if (hosts.has_column()) batch.send({.peer = root}, own);
    return;
  }
  for (int column = 0; column < hosts.num_columns(); ++column) {
    if (column != root) batch.receive({.peer = column}, slice(segment.output, parts[column]));
  }
}

static Task<Status> run_stages(const Hierarchy& hosts, ReduceSegment segment) {
  PoolArray<ConstBuffer> contributions(hosts.size_class_pool(), hosts.num_local());
  const Partition parts(segment.input.num_bytes, hosts.num_columns());
  for (int column = 0; column < hosts.num_columns(); ++column) {
    contributions[column] = slice(segment.input, parts[column]);
  }
  messaging::View everyone = hosts.everyone();
  const Range own = hosts.has_column() ? parts[hosts.local_index()] : Range();
  const bool is_root = hosts.rank() == hosts.arguments().root;
  const Buffer sum = is_root ? slice(segment.output, own) : everyone.scratch(own.length).slice(0, own.length);
  const ConstBuffer sum_input = sum;
  AXON_CO_TRY(co_await run_stage(hosts.local(2 * segment.index), {.kind = transport::OperationKind::kReduceScatter,
                                                                  .dtype = segment.levels.dtype,
                                                                  .reduction = segment.levels.within_hosts,
                                                                  .premul_factor = hosts.arguments().premul_factor,
                                                                  .inputs = contributions,
                                                                  .outputs = {&sum, 1}}));
  if (hosts.has_column()) {
    AXON_CO_TRY(co_await run_stage(hosts.column(2 * segment.index), {.kind = transport::OperationKind::kReduce,
                                                                     .dtype = segment.levels.dtype,
                                                                     .reduction = segment.levels.between_hosts,
                                                                     .root = root_host(hosts),
                                                                     .inputs = {&sum_input, 1},
                                                                     .outputs = {&sum, 1}}));
  }
  const messaging::View local = hosts.local(2 * segment.index + 1);
  messaging::Batch batch(local);
  gather_parts(hosts, batch, segment, sum);
  AXON_CO_TRY(co_await batch);
  everyone.release_scratch();
  co_return Status();
}

static Task<Status> reduce_segment(const Hierarchy& hosts, Segment segment) {
  const CollectiveArguments& arguments = hosts.arguments();
  const bool is_root = hosts.rank() == arguments.root;
  co_return co_await run_stages(hosts, {.input = segment.of(arguments.inputs[0]),
                                        .output = is_root ? segment.of(arguments.outputs[0]) : Buffer(),
                                        .levels = levels_of(arguments),
                                        .index = segment.index});
}

static Task<Status> reduce_widened(const Hierarchy& hosts, Segment segment) {
  const CollectiveArguments& arguments = hosts.arguments();
  const ConstBuffer input = segment.of(arguments.inputs[0]);
  const size_t num_elements = input.num_bytes / size_of(arguments.dtype);
  const bool is_root = hosts.rank() == arguments.root;
  messaging::View everyone = hosts.everyone();
  const ReductionPlan plan = reduction_plan(everyone, arguments);
  const size_t length = partial_bytes(arguments.dtype, input.num_bytes);
  const Buffer widened = everyone.scratch(length).slice(0, length);
  begin_partial(plan, widened, input, num_elements);
  AXON_CO_TRY(co_await run_stages(hosts, {.input = widened,
                                          .output = is_root ? widened : Buffer(),
                                          .levels = widened_levels_of(arguments),
                                          .index = segment.index}));
  if (is_root) finish_partial(plan, segment.of(arguments.outputs[0]), widened, num_elements);
  everyone.release_scratch();
  co_return Status();
}

Task<Status> reduce::hierarchical(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  co_return co_await run_segments(hosts, arguments.inputs[0].num_bytes, reduce_segment);
}

Task<Status> reduce::hierarchical_exact(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  const SegmentRunner run = is_half(arguments.dtype) ? reduce_widened : reduce_segment;
  co_return co_await run_segments(hosts, arguments.inputs[0].num_bytes, run);
}

}  // namespace axon::collectives
