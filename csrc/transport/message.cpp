#include "transport/message.hpp"

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
    case OperationKind::kInvoke:
      return "invoke";
    case OperationKind::kTell:
      return "tell";
    case OperationKind::kInvokePayload:
      return "payload frame of an invoke";
    case OperationKind::kReply:
      return "reply";
    case OperationKind::kFailure:
      return "failure";
    case OperationKind::kReplyPayload:
      return "payload frame of a reply";
    case OperationKind::kCancel:
      return "cancel";
    case OperationKind::kClose:
      return "close";
    case OperationKind::kWithdrawn:
      return "withdrawn call";
    case OperationKind::kRts:
      return "RTS";
    case OperationKind::kCts:
      return "CTS";
    case OperationKind::kNack:
      return "NACK";
    case OperationKind::kFragment:
      return "fragment";
    case OperationKind::kFailureNotice:
      return "failure notice";
    case OperationKind::kProgressQuery:
      return "progress query";
    case OperationKind::kProgressReply:
      return "progress reply";
    case OperationKind::kDeparture:
      return "departure";
    case OperationKind::kCredit:
      return "credit";
  }
  return "unknown operation";
}

}  // namespace axon::transport
