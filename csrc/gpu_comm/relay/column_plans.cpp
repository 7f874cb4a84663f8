#include "gpu_comm/relay/column_plans.hpp"

#include "collectives/levels.hpp"
#include "collectives/selector.hpp"
#include "gpu_comm/relay/column_plan.hpp"
#include "kernels/reduce_slots.hpp"

namespace axon::gpu_comm {

using transport::OperationKind;

namespace {

// Short tensors take fewer stages, for a few packets more.
constexpr size_t kMostShortBytes = size_t{64} << 10;

bool has_even_hosts(const messaging::Topology& topology) noexcept {
  return topology.largest_host() == topology.num_columns();
}

bool is_short(const engine::Operation& operation) noexcept {
  return operation.num_elements * size_of(operation.arguments.dtype) <= kMostShortBytes;
}

bool is_reduction(OperationKind kind) noexcept {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter;
}

// Returns whether kernels do all of the reduction, within the hosts and between them.
bool has_kernels(const engine::Operation& operation, const DeviceGroup& group,
                 const engine::Communicator& communicator) {
  const collectives::CollectiveArguments& arguments = operation.arguments;
  const messaging::Topology& topology = communicator.topology();
  if (!kernels::can_reduce_slots(arguments.dtype, between_hosts(arguments, topology))) return false;
  if (topology.largest_host() == 1) return true;
  const collectives::AlgorithmOverrides& overrides = communicator.overrides();
  if (overrides.is_reproducible() || (overrides.is_exact() && collectives::is_half(arguments.dtype))) return false;
  LocalCall stage(operation, OperationKind::kReduceScatter);
  set_reduction(stage, operation, communicator.size());
  return group.serves_local(stage);
}

}  // namespace

bool has_column_plan(const engine::Operation& operation, const DeviceGroup& group,
                     const engine::Communicator& communicator, bool has_local_links) {
  const messaging::Topology& topology = communicator.topology();
  const OperationKind kind = operation.arguments.kind;
  const bool is_one_rank_per_host = topology.largest_host() == 1;
  if (topology.is_one_host() || !(has_local_links || is_one_rank_per_host)) return false;
  // On such hosts the direct plans of these do the same, with fewer launches.
  if (is_one_rank_per_host && (!is_reduction(kind) || is_short(operation))) return false;
  switch (kind) {
    case OperationKind::kAllReduce:
      return has_kernels(operation, group, communicator);
    case OperationKind::kReduceScatter:
      return has_even_hosts(topology) && has_kernels(operation, group, communicator);
    case OperationKind::kAllGather:
      return has_even_hosts(topology);
    case OperationKind::kBroadcast:
      return true;
    default:
      return false;
  }
}

std::unique_ptr<RelayPlan> column_plan(const engine::Operation& operation, DeviceGroup& group,
                                       const engine::Communicator& communicator) {
  switch (operation.arguments.kind) {
    case OperationKind::kAllReduce:
      if (is_short(operation) && has_even_hosts(communicator.topology())) {
        return make_short_all_reduce_plan(operation, group, communicator);
      }
      return make_all_reduce_plan(operation, group, communicator);
    case OperationKind::kReduceScatter:
      return make_reduce_scatter_plan(operation, group, communicator);
    case OperationKind::kBroadcast:
      return make_broadcast_plan(operation, group, communicator);
    default:
      return make_all_gather_plan(operation, group, communicator);
  }
}

}  // namespace axon::gpu_comm
