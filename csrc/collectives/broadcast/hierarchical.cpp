// Hierarchical: a broadcast to one rank of each host, then one within each host.
//
// The root sends to the leaders of the other hosts, and is itself the leader of its own. The tensor enters each other
// host once. Segments pass through both stages side by side. Wins on hosts with several ranks.
#include "collectives/algorithms.hpp"
#include "collectives/hierarchy.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

static Task<Status> broadcast_segment(const Hierarchy& hosts, Segment segment) {
  const CollectiveArguments& arguments = hosts.arguments();
  const Buffer part = segment.of(arguments.outputs[0]);
  const int root_host = hosts.topology().host_of(arguments.root);
  PoolArray<int> leaders(hosts.size_class_pool(), hosts.num_hosts());
  for (int host = 0; host < hosts.num_hosts(); ++host) leaders[host] = hosts.topology().ranks_on(host).front();
  leaders[root_host] = arguments.root;
  if (hosts.rank() == leaders[hosts.host()]) {
    AXON_CO_TRY(co_await run_stage(hosts.across(segment.index, leaders), {.kind = transport::OperationKind::kBroadcast,
                                                                          .dtype = arguments.dtype,
                                                                          .root = root_host,
                                                                          .outputs = {&part, 1}}));
  }
  co_return co_await run_stage(hosts.local(segment.index),
                               {.kind = transport::OperationKind::kBroadcast,
                                .dtype = arguments.dtype,
                                .root = hosts.topology().local_index_of(leaders[hosts.host()]),
                                .outputs = {&part, 1}});
}

Task<Status> broadcast::hierarchical(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  co_return co_await run_segments(hosts, arguments.outputs[0].num_bytes, broadcast_segment);
}

}  // namespace axon::collectives
