// Hierarchical: a reduce_scatter within each host, an all_reduce between hosts, and an all_gather within each host.
//
// Each of the g ranks of a host reduces one g-th of every segment, which it then reduces with the ranks of equal local
// index on the other hosts. With h hosts, 2·(h−1)/h of the tensor leave each host, instead of 2·(n−g)/n·g with
// two_shot. If the hosts have different numbers of ranks, as many ranks take part between hosts as the smallest host
// has. Segments pass through the three stages side by side. Wins for large tensors on hosts with several ranks.
#include "collectives/algorithms.hpp"
#include "collectives/hierarchy.hpp"
#include "collectives/levels.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

static Task<Status> run_stages(const Hierarchy& hosts, Buffer segment, Levels levels, size_t index) {
  PoolArray<ConstBuffer> contributions(hosts.size_class_pool(), hosts.num_local());
  PoolArray<Buffer> results(hosts.size_class_pool(), hosts.num_local());
  const Partition parts(segment.num_bytes, hosts.num_columns());
  for (int column = 0; column < hosts.num_columns(); ++column) {
    contributions[column] = results[column] = slice(segment, parts[column]);
  }
  const Buffer own = results[hosts.local_index()];
  const ConstBuffer own_result = own;
  AXON_CO_TRY(co_await run_stage(hosts.local(2 * index), {.kind = transport::OperationKind::kReduceScatter,
                                                          .dtype = levels.dtype,
                                                          .reduction = levels.within_hosts,
                                                          .premul_factor = hosts.arguments().premul_factor,
                                                          .inputs = contributions,
                                                          .outputs = {&own, 1}}));
  if (hosts.has_column()) {
    AXON_CO_TRY(co_await run_stage(hosts.column(2 * index), {.kind = transport::OperationKind::kAllReduce,
                                                             .dtype = levels.dtype,
                                                             .reduction = levels.between_hosts,
                                                             .outputs = {&own, 1}}));
  }
  co_return co_await run_stage(hosts.local(2 * index + 1), {.kind = transport::OperationKind::kAllGather,
                                                            .dtype = levels.dtype,
                                                            .inputs = {&own_result, 1},
                                                            .outputs = results});
}

static Task<Status> all_reduce_segment(const Hierarchy& hosts, Segment segment) {
  const CollectiveArguments& arguments = hosts.arguments();
  co_return co_await run_stages(hosts, segment.of(arguments.outputs[0]), levels_of(arguments), segment.index);
}

static Task<Status> all_reduce_widened(const Hierarchy& hosts, Segment segment) {
  const CollectiveArguments& arguments = hosts.arguments();
  const Buffer part = segment.of(arguments.outputs[0]);
  const size_t num_elements = part.num_bytes / size_of(arguments.dtype);
  messaging::View everyone = hosts.everyone();
  const ReductionPlan plan = reduction_plan(everyone, arguments);
  const size_t length = partial_bytes(arguments.dtype, part.num_bytes);
  const Buffer widened = everyone.scratch(length).slice(0, length);
  begin_partial(plan, widened, part, num_elements);
  AXON_CO_TRY(co_await run_stages(hosts, widened, widened_levels_of(arguments), segment.index));
  finish_partial(plan, part, widened, num_elements);
  everyone.release_scratch();
  co_return Status();
}

Task<Status> all_reduce::hierarchical(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  co_return co_await run_segments(hosts, arguments.outputs[0].num_bytes, all_reduce_segment);
}

Task<Status> all_reduce::hierarchical_exact(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  const SegmentRunner run = is_half(arguments.dtype) ? all_reduce_widened : all_reduce_segment;
  co_return co_await run_segments(hosts, arguments.outputs[0].num_bytes, run);
}

}  // namespace axon::collectives
