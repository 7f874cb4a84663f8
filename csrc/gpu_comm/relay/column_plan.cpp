#include "gpu_comm/relay/column_plan.hpp"

#include "collectives/levels.hpp"
#include "gpu_comm/relay/direct_plan.hpp"
#include "kernels/reduce_slots.hpp"

namespace axon::gpu_comm {

using transport::OperationKind;

// Kernels that read host memory reach its full speed with this many blocks.
static constexpr int kBlocksOnHostMemory = 16;

void set_reduction(LocalCall& call, const engine::Operation& operation, int num_ranks) noexcept {
  call.arguments.reduction = collectives::levels_of(operation.arguments).within_hosts;
  call.arguments.premul_factor = operation.arguments.premul_factor;
  if (call.arguments.reduction == Reduction::kAverage) {
    call.arguments.reduction = Reduction::kPremulSum;
    call.arguments.premul_factor = 1.0 / num_ranks;
  }
}

Reduction between_hosts(const collectives::CollectiveArguments& arguments,
                        const messaging::Topology& topology) noexcept {
  return topology.largest_host() == 1 ? arguments.reduction : collectives::levels_of(arguments).between_hosts;
}

ColumnPlan::ColumnPlan(const engine::Operation& operation, DeviceGroup& group,
                       const engine::Communicator& communicator) noexcept
    : operation_(operation),
      arguments_(operation.arguments),
      group_(group),
      topology_(communicator.topology()),
      rank_(communicator.rank()),
      longest_wait_(longest_wait_of(operation.timeout)),
      division_(division_of(operation, communicator.size(), topology_.num_columns())) {}

Status ColumnPlan::reduce_scatter_locally(const std::vector<ConstBuffer>& parts, Buffer output,
                                          cuda::StreamView stream) {
  LocalCall call(operation_, OperationKind::kReduceScatter);
  set_reduction(call, operation_, topology_.num_ranks());
  return call.launch(group_, total_of(parts), parts, {&output, 1}, stream);
}

Status ColumnPlan::all_gather_locally(ConstBuffer input, const std::vector<Buffer>& outputs, cuda::StreamView stream) {
  LocalCall call(operation_, OperationKind::kAllGather);
  return call.launch(group_, total_of(outputs), {&input, 1}, outputs, stream);
}

Status ColumnPlan::sum(const std::byte* received, size_t stride, ConstBuffer own, std::byte* output,
                       cuda::StreamView stream) {
  return kernels::reduce_slots({.slots = received,
                                .slot_bytes = stride,
                                .num_slots = num_hosts(),
                                .own = own.data,
                                .own_slot = own_host(),
                                .output = output,
                                .num_elements = own.num_bytes / size_of(arguments_.dtype),
                                .dtype = arguments_.dtype,
                                .reduction = between_hosts(arguments_, topology_),
                                .divisor = topology_.num_ranks(),
                                .most_blocks = kBlocksOnHostMemory},
                               stream);
}

}  // namespace axon::gpu_comm
