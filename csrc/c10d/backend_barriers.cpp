// Barriers, and the one that says who has not come to it.
#include "c10d/backend.hpp"
#include "c10d/cuda_side.hpp"
#include "c10d/errors.hpp"

namespace axon {

// So much later the other ranks of a monitored barrier give up by themselves: rank 0's word is there by then.
static constexpr std::chrono::seconds kTimeForWord{2};

AxonBackend::WorkPtr AxonBackend::barrier(const c10d::BarrierOptions& options) {
  static constexpr Call kCall{c10d::OpType::BARRIER, "axon:barrier"};
  auto work = make_work(kCall, {});
  Part& part = work->add_part();
  part.arguments.kind = OperationKind::kBarrier;
  // As with NCCL: behind all that the current stream has.
  if (CudaSide* side = cuda_side_.load(std::memory_order_acquire)) side->gate(part);
  return run(std::move(work), kCall, mode_of(options));
}

// Rank 0 finds out, the others hear it from there. The texts begin as Gloo's do, which programs and torch's own tests
// look for; ours, which names every missing rank with what it did last, follows.
std::string AxonBackend::who_has_failed(bool names_all) {
  if (getRank() != 0) {
    return "Rank " + std::to_string(getRank()) +
           " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. ";
  }
  const std::vector<int> missing = communicator_->missing_ranks();
  if (missing.empty()) return "";
  std::string text = missing.size() > 1 && names_all ? "Ranks " : "Rank ";
  for (size_t i = 0; i < (names_all ? missing.size() : 1); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
  }
  return text + " failed to pass monitoredBarrier. ";
}

void AxonBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  c10d::BarrierOptions synchronous = options;
  synchronous.asyncOp = false;
  if (options.timeout == c10d::kUnsetTimeout) synchronous.timeout = timeout();
  if (getRank() != 0) {
    synchronous.timeout += kTimeForWord;
  } else if (synchronous.timeout.count() == 0) {
    throw_failure({ErrorCode::kTimeout, "Rank 0 timed out in monitoredBarrier: its timeout is 0 ms"});
  }
  try {
    barrier(synchronous);
  } catch (const c10::DistBackendError& error) {
    throw_failure({ErrorCode::kTimeout, who_has_failed(wait_all_ranks) + error.msg()});
  }
}

}  // namespace axon
