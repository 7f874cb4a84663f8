#include "gpu_comm/fault_text.hpp"

#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "engine/device_hook.hpp"
#include "gpu_comm/barrier_descriptor.hpp"
#include "kernels/prepared.hpp"

namespace axon::gpu_comm {

static const char* name_of(cuda::DeviceOperation operation) noexcept {
  static constexpr std::array kNames{"nothing",          "all_reduce",        "all_reduce",
                                     "all_reduce",       "all_gather",        "reduce_scatter",
                                     "reduce",           "broadcast",         "gather",
                                     "scatter",          "all_to_all",        "barrier",
                                     "send or receive",  "all_gather_matmul", "matmul_reduce_scatter",
                                     "prepared transfer"};
  const auto index = static_cast<size_t>(operation);
  return index < kNames.size() ? kNames[index] : "an unknown operation";
}

static std::string amount_of(const cuda::DeviceDescriptor& call) {
  const auto operation = static_cast<cuda::DeviceOperation>(call.operation);
  if (operation == cuda::DeviceOperation::kAllGatherMatmul ||
      operation == cuda::DeviceOperation::kMatmulReduceScatter) {
    const BarrierDescriptor descriptor = BarrierDescriptor::from_bits(call.num_bytes);
    return std::to_string(descriptor.num_mib) + " MiB in all, digest of sizes " + std::to_string(descriptor.digest);
  }
  return std::to_string(call.num_bytes / size_of(static_cast<DataType>(call.dtype))) + " elements";
}

// A root that the team does not have is part of a mismatch, so it is named as it is.
static std::string root_of(const cuda::DeviceDescriptor& call, const LocalTeam& team) {
  const auto root = static_cast<int>(call.root);
  return std::to_string(root < team.size() ? team.rank_of(root) : root);
}

std::string describe(const cuda::DeviceDescriptor& call, uint32_t tag, const LocalTeam& team) {
  const auto operation = static_cast<cuda::DeviceOperation>(call.operation);
  std::string text = name_of(operation);
  if (operation == cuda::DeviceOperation::kBarrier) return text;
  text += std::string(" (") + name_of(static_cast<DataType>(call.dtype)) + ", " + amount_of(call);
  const auto reduction = static_cast<Reduction>(call.reduction);
  if (reduction != Reduction::kNone) text += std::string(", ") + name_of(reduction);
  if (call.root != cuda::kNoRoot) text += ", root " + root_of(call, team);
  const bool has_tag =
      operation == cuda::DeviceOperation::kPointToPoint || operation == cuda::DeviceOperation::kPreparedTransfer;
  if (has_tag) text += ", tag " + std::to_string(tag);
  return text + ")";
}

static std::string misuse_text(uint32_t misuse, uint64_t partition) {
  const std::string named = "partition " + std::to_string(partition);
  switch (static_cast<kernels::Misuse>(misuse)) {
    case kernels::Misuse::kNotStarted:
      return named + " was used before start(); allowed: after it, and before wait() ends";
    case kernels::Misuse::kNotWaited:
      return "start() was called again before wait(); allowed: once the last start has been waited for";
    case kernels::Misuse::kNoPartition:
      return named + " does not exist; allowed: 0 to the number of partitions − 1";
    case kernels::Misuse::kReadyTwice:
      return named + " was made ready twice; allowed: once per start()";
    case kernels::Misuse::kNoSender:
      return named + " was made ready by the receiver; allowed: by the sender";
  }
  return "an unknown misuse of " + named;
}

static std::string name_of_peer(const cuda::FaultReport& report, const LocalTeam& team, int remote_peer) {
  if (remote_peer >= 0) return "rank " + std::to_string(remote_peer);
  const bool is_known = report.peer >= 0 && report.peer < team.size();
  return is_known ? "rank " + std::to_string(team.rank_of(report.peer)) : "an unknown rank";
}

Status fault_in(const cuda::TeamControl& control, const LocalTeam& team, int remote_peer) {
  // Pairs with the kernel's release store, which follows the rest of the report.
  const auto& code_flag = reinterpret_cast<const std::atomic<cuda::FaultCode>&>(control.report.code);
  const cuda::FaultCode code = code_flag.load(std::memory_order_acquire);
  if (code == cuda::FaultCode::kNone) return Status();
  const cuda::FaultReport& report = control.report;
  const std::string peer = name_of_peer(report, team, remote_peer);
  const std::string ours = describe(report.ours, report.our_tag, team);
  switch (code) {
    case cuda::FaultCode::kTimeout: {
      std::string text = ours + ": Timed out on the GPU. Still awaited here: " + peer + ".";
      const bool is_message =
          static_cast<cuda::DeviceOperation>(report.ours.operation) == cuda::DeviceOperation::kPointToPoint;
      if (is_message) text += engine::kMeetingUnderTags;
      return {ErrorCode::kTimeout, std::move(text)};
    }
    case cuda::FaultCode::kMismatch:
      return {ErrorCode::kMismatch, "mismatched operations: " + peer + " called " +
                                        describe(report.theirs, report.their_tag, team) + ", rank " +
                                        std::to_string(team.rank_of(team.index())) + " called " + ours};
    case cuda::FaultCode::kMisuse:
      return {ErrorCode::kInvalidArgument,
              ours + " with " + peer + ": " + misuse_text(report.their_tag, report.sequence)};
    case cuda::FaultCode::kGone:
      return {ErrorCode::kPeerLost, ours + " was waiting for " + peer + " on the GPU, whose process has ended"};
    default:
      return {ErrorCode::kAborted, ours + " was waiting for " + peer + " on the GPU"};
  }
}

}  // namespace axon::gpu_comm
