#include "transport/fingerprint.hpp"

namespace axon::transport {

const char* name_of(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::kBroadcast:
      return "broadcast";
    case OperationKind::kAllReduce:
      return "all_reduce";
    case OperationKind::kReduce:
      return "reduce";
    case OperationKind::kAllGather:
      return "all_gather";
    case OperationKind::kGather:
      return "gather";
    case OperationKind::kScatter:
      return "scatter";
    case OperationKind::kReduceScatter:
      return "reduce_scatter";
    case OperationKind::kAllToAll:
      return "all_to_all";
    case OperationKind::kBarrier:
      return "barrier";
    case OperationKind::kPointToPoint:
      return "send/recv";
  }
  return "unknown operation";
}

}  // namespace axon::transport
