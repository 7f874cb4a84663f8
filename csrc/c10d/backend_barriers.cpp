// Barriers, and the monitored barrier, which names the missing ranks.
#include <c10/util/Exception.h>

#include <algorithm>

#include "c10d/backend.hpp"
#include "c10d/cuda_side.hpp"
#include "c10d/errors.hpp"

namespace axon::c10d_backend {

AxonBackend::WorkPtr AxonBackend::barrier(const c10d::BarrierOptions& options) {
  static constexpr Call kCall{c10d::OpType::BARRIER, "axon:barrier"};
  auto work = make_work(kCall, {});
  WorkOperation& operation = work->add_operation();
  operation.arguments.kind = transport::OperationKind::kBarrier;
  // As with NCCL, the barrier follows all work of the current stream.
  if (CudaSide* side = cuda_side_.load(std::memory_order_acquire)) side->start_after_current_stream(operation);
  return run(std::move(work), kCall, mode_of(options));
}

// How much longer than the group's timeout the other ranks wait in a monitored barrier. Rank 0 may arrive late; it then
// waits for its timeout, and 300 ms to find out which ranks are missing.
static constexpr std::chrono::seconds kTimeForReport{2};

// Returns "Ranks 1, 3", with at most `most` ranks.
static std::string named(const std::vector<int>& ranks, size_t most) {
  const size_t num_named = std::min(ranks.size(), most);
  std::string text = num_named == 1 ? "Rank " : "Ranks ";
  for (size_t i = 0; i < num_named; ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

// Rank 0 finds the missing ranks; the other ranks learn of the failure from rank 0. The texts begin as Gloo's do,
// because programs and torch's own tests look for these. Our text follows, with the last operation of every missing
// rank. This barrier synchronises the hosts only, so pending GPU work does not delay it.
void AxonBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  static constexpr Call kCall{c10d::OpType::BARRIER, "axon:monitored_barrier"};
  const std::chrono::milliseconds barrier_timeout =
      options.timeout == c10d::kUnsetTimeout ? timeout() : options.timeout;
  const bool is_first = getRank() == 0;
  if (is_first && getSize() > 1 && barrier_timeout.count() <= 0) {
    const std::string within = std::to_string(barrier_timeout.count()) + " ms";
    throw_failure({ErrorCode::kTimeout,
                   "Rank 0 timed out in monitoredBarrier: its timeout must be more than 0 ms and is " + within});
  }
  const auto work = make_work(kCall, {});
  WorkOperation& operation = work->add_operation();
  operation.arguments.kind = transport::OperationKind::kBarrier;
  try {
    run(work, kCall,
        {.asynchronous = false,
         .timeout = is_first ? barrier_timeout : std::max(barrier_timeout, timeout()) + kTimeForReport});
  } catch (const c10::DistBackendError& error) {
    const ErrorCode code = operation.status().code();
    std::string gloos;
    if (!is_first && (code == ErrorCode::kTimeout || code == ErrorCode::kPeerLost)) {
      gloos = "Rank " + std::to_string(getRank()) +
              " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. ";
    } else if (is_first && code == ErrorCode::kTimeout) {
      const std::vector<int> missing = communicator_->missing_from(operation);
      const size_t most = wait_all_ranks ? missing.size() : 1;
      if (!missing.empty()) {
        gloos = named(missing, most) + " failed to pass monitoredBarrier in " +
                std::to_string(barrier_timeout.count()) + " ms. ";
      }
    }
    C10_THROW_ERROR(DistBackendError, gloos + error.msg());
  }
}

}  // namespace axon::c10d_backend
