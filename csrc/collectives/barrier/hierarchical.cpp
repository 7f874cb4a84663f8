// Hierarchical: a barrier within each host, one between the leaders of the hosts, and a release within each host.
//
// Only the leaders send messages between hosts: ⌈log2 h⌉ each with h hosts. Wins on hosts with several ranks.
#include "collectives/algorithms.hpp"
#include "collectives/hierarchy.hpp"

namespace axon::collectives {

Task<Status> barrier::hierarchical(messaging::View& view, const CollectiveArguments& arguments) {
  const Hierarchy hosts(view, arguments);
  const CollectiveArguments barrier{.kind = transport::OperationKind::kBarrier};
  AXON_CO_TRY(co_await run_stage(hosts.local(0), barrier));
  if (hosts.local_index() == 0) AXON_CO_TRY(co_await run_stage(hosts.column(0), barrier));
  const Buffer nothing;
  co_return co_await run_stage(hosts.local(1),
                               {.kind = transport::OperationKind::kBroadcast, .root = 0, .outputs = {&nothing, 1}});
}

}  // namespace axon::collectives
