#include "stream/messages.hpp"

#include <algorithm>

namespace axon {

SendBlock to_send(const ConstBuffer& buffer, uint32_t tag) noexcept {
  return {.data = buffer.data, .num_bytes = buffer.num_bytes, .tag = tag};
}

ReceiveBlock to_receive(const Buffer& buffer, uint32_t tag) noexcept {
  return {.data = buffer.data, .num_bytes = buffer.num_bytes, .tag = tag};
}

static DeviceOperation moving(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::kBroadcast:
      return DeviceOperation::kBroadcast;
    case OperationKind::kAllGather:
      return DeviceOperation::kAllGather;
    case OperationKind::kGather:
      return DeviceOperation::kGather;
    case OperationKind::kScatter:
      return DeviceOperation::kScatter;
    case OperationKind::kAllToAll:
      return DeviceOperation::kAllToAll;
    default:
      return DeviceOperation::kBarrier;
  }
}

LineExchange messages_of(int own_rank, int num_ranks, const CollectiveArguments& arguments) noexcept {
  LineExchange call{.operation = moving(arguments.kind),
                    .dtype = arguments.dtype,
                    .root = arguments.root >= 0 ? arguments.root : kNoRoot};
  const bool is_root = own_rank == arguments.root;
  const auto root = static_cast<size_t>(std::max(arguments.root, 0));
  for (size_t rank = 0; rank < static_cast<size_t>(num_ranks); ++rank) {
    switch (arguments.kind) {
      case OperationKind::kBroadcast:
        if (is_root && rank != root) call.sends[rank] = to_send(arguments.outputs[0]);
        if (!is_root && rank == root) call.receives[rank] = to_receive(arguments.outputs[0]);
        break;
      case OperationKind::kAllGather:
        call.sends[rank] = to_send(arguments.inputs[0]);
        call.receives[rank] = to_receive(arguments.outputs[rank]);
        break;
      case OperationKind::kGather:
        if (rank == root) call.sends[rank] = to_send(arguments.inputs[0]);
        if (is_root) call.receives[rank] = to_receive(arguments.outputs[rank]);
        break;
      case OperationKind::kScatter:
        if (is_root) call.sends[rank] = to_send(arguments.inputs[rank]);
        if (rank == root) call.receives[rank] = to_receive(arguments.outputs[0]);
        break;
      case OperationKind::kAllToAll:
        call.sends[rank] = to_send(arguments.inputs[rank]);
        call.receives[rank] = to_receive(arguments.outputs[rank]);
        break;
      default:
        break;
    }
  }
  return call;
}

}  // namespace axon
