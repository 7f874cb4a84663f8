#include "kernels/ll/launch.hpp"

#include <algorithm>
#include <string>

#include "kernels/dispatch.cuh"
#include "kernels/ll/kernel.cuh"
#include "kernels/reduce_types.hpp"

namespace axon::kernels::ll {
namespace {

// One packet per worker as long as possible. At first there are few workers per block, since one multiprocessor stores
// only ~44 GB/s. Then blocks become larger. More than 32 blocks are used only when those are full
// (benchmarks/results/kernels_ll_4xh200.jsonl). Each block slows down computation that runs
// at the same time (docs/adr/0073-use-fewer-blocks-beside-computation.md).
cuda::LaunchShape choose_shape(size_t num_packets, Beside beside) {
  constexpr size_t kFewWorkers = 128, kFewBlocks = 32, kBlocksBesideComputation = 8;
  const auto divide_up = [](size_t a, size_t b) { return (a + b - 1) / b; };
  const size_t num_full_blocks = std::max<size_t>(divide_up(num_packets, kMaxWorkers), 1);
  size_t num_blocks = std::min<size_t>(num_full_blocks, cuda::kMaxBlocks);
  if (beside == Beside::kComputation) {
    num_blocks = std::min(num_full_blocks, kBlocksBesideComputation);
  } else if (num_full_blocks <= kFewBlocks) {
    num_blocks = std::clamp<size_t>(divide_up(num_packets, kFewWorkers), 1, kFewBlocks);
  }
  const size_t num_warps = divide_up(divide_up(num_packets, num_blocks), 32);
  return {.num_blocks = static_cast<int>(num_blocks),
          .num_threads = static_cast<int>(std::clamp<size_t>(num_warps * 32, 32, kMaxWorkers))};
}

Status check(const cuda::DeviceTeam& team, const LlCollective& call, const LlPlan& plan) {
  if (plan.kernel == nullptr) {
    return Status(ErrorCode::kInvalidArgument, "no LL kernel for data type " +
                                                   std::to_string(static_cast<int>(call.dtype)) + " with reduction " +
                                                   std::to_string(static_cast<int>(call.reduction)));
  }
  if (plan.region_packets > team.layout.region_packets) {
    return Status(ErrorCode::kInvalidArgument,
                  std::to_string(call.num_elements) + " elements take " + std::to_string(plan.region_packets) +
                      " packets, but the team has only " + std::to_string(team.layout.region_packets));
  }
  const cuda::LaunchShape& shape = call.shape;
  const bool is_default = shape.num_blocks == 0 && shape.num_threads == 0;
  const bool fits = shape.num_blocks > 0 && shape.num_blocks <= cuda::kMaxBlocks && shape.num_threads > 0 &&
                    shape.num_threads <= kMaxWorkers && shape.num_threads % 32 == 0;
  if (!is_default && !fits) {
    return Status(ErrorCode::kInvalidArgument, "a grid must have 1 to " + std::to_string(cuda::kMaxBlocks) +
                                                   " blocks of up to " + std::to_string(kMaxWorkers) +
                                                   " threads, in whole warps");
  }
  return Status();
}

}  // namespace

Status launch(const cuda::DeviceTeam& team, const LlCollective& call, const LlPlan& plan, cuda::StreamView stream) {
  AXON_TRY(check(team, call, plan));
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  LlArguments arguments{
      .descriptor = {.operation = static_cast<uint64_t>(plan.operation),
                     .dtype = static_cast<uint64_t>(call.dtype),
                     .reduction = static_cast<uint64_t>(call.reduction),
                     .root = cuda::kNoRoot,
                     .num_bytes = num_bytes},
      .plan = {.reduction = reduction_of_kernel(call.dtype, call.reduction),
               .num_ranks = team.num_ranks,
               .premul_factor = call.premul_factor},
      .num_packets = static_cast<uint32_t>(plan.num_packets),
      .input = static_cast<const std::byte*>(call.input),
      .output = static_cast<std::byte*>(call.output),
      .num_bytes = num_bytes,
  };
  cuda::LaunchShape shape = call.shape.num_blocks > 0 ? call.shape : choose_shape(plan.num_packets, call.beside);
  shape.num_threads += kControlThreads;
  void* parameters[] = {const_cast<cuda::DeviceTeam*>(&team), &arguments};
  return launch(plan.kernel, shape, parameters, stream);
}

Status load_kernels(int num_ranks) {
  for (const auto& [dtype, reduction] : all_reduction_types()) {
    AXON_TRY(cuda::load(ll_one_shot_kernel(dtype, reduction, num_ranks)));
    AXON_TRY(cuda::load(ll_two_shot_kernel(dtype, reduction, num_ranks)));
  }
  return cuda::load(ll_all_gather_kernel(num_ranks));
}

}  // namespace axon::kernels::ll
