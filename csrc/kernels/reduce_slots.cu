// Streams through all slots at once, vector by vector. In contrast, at::sum_out over the first dimension reads memory
// at half of its bandwidth (4 × 64 MiB of bfloat16 on an H200: 133 µs).
#include "kernels/reduce_slots.hpp"

#include <algorithm>
#include <utility>

#include "cuda/launch.hpp"
#include "kernels/ll128/message.cuh"
#include "kernels/reduce.cuh"
#include "kernels/reduce_types.hpp"

namespace axon::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWide = 2;  // vectors per thread at a time

struct ReduceSlotsArguments {
  ReducePlan plan;
  const std::byte* slots;
  uint64_t slot_bytes;
  int num_slots;
  int own_slot;
  const std::byte* own;
  std::byte* output;
  uint64_t num_bytes;
};

__device__ __forceinline__ Vector16 stream_in(const std::byte* address) {
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(address));
  return *reinterpret_cast<const Vector16*>(&words);
}

// Returns the vector of one operand; of the last vector, what the operand has of it.
__device__ __forceinline__ Vector16 load_operand(const ReduceSlotsArguments& call, int slot, uint64_t offset) {
  if (slot != call.own_slot) return stream_in(call.slots + slot * call.slot_bytes + offset);
  const std::byte* const address = call.own + offset;
  const uint64_t num_left = call.num_bytes - offset;
  if (num_left >= sizeof(Vector16) && ll::is_aligned(address, sizeof(Vector16))) return stream_in(address);
  return ll128::load_partial_vector(address, min(num_left, sizeof(Vector16)));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) reduce_slots_kernel(const __grid_constant__ ReduceSlotsArguments call) {
  await_stream();
  const uint64_t num_vectors = ll128::count_vectors(call.num_bytes);
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  for (uint64_t first = uint64_t{blockIdx.x} * kThreads + threadIdx.x; first < num_vectors; first += kWide * stride) {
    Accumulator<Sums<T>, Vector16> totals[kWide];
    uint64_t offsets[kWide];
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      offsets[k] = (first + k * stride < num_vectors ? first + k * stride : first) * sizeof(Vector16);
      totals[k].set(call.plan, load_operand(call, 0, offsets[k]));
    }
#pragma unroll 3
    for (int slot = 1; slot < call.num_slots; ++slot) {
#pragma unroll
      for (int k = 0; k < kWide; ++k) totals[k].add(call.plan, load_operand(call, slot, offsets[k]));
    }
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      if (k != 0 && offsets[k] == offsets[0]) continue;
      const Vector16 total = totals[k].result(call.plan);
      const uint64_t num_left = call.num_bytes - offsets[k];
      if (num_left >= sizeof(Vector16) && ll::is_aligned(call.output, sizeof(Vector16))) {
        *reinterpret_cast<Vector16*>(call.output + offsets[k]) = total;
      } else {
        ll128::store_partial_vector(call.output + offsets[k], min(num_left, sizeof(Vector16)), 0, total);
      }
    }
  }
}

const void* kernel_for(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return reinterpret_cast<const void*>(&reduce_slots_kernel<__half>);
    case DataType::kBFloat16:
      return reinterpret_cast<const void*>(&reduce_slots_kernel<__nv_bfloat16>);
    case DataType::kFloat32:
    case DataType::kComplex64:
      return reinterpret_cast<const void*>(&reduce_slots_kernel<float>);
    case DataType::kFloat64:
    case DataType::kComplex128:
      return reinterpret_cast<const void*>(&reduce_slots_kernel<double>);
    default:
      return nullptr;
  }
}

}  // namespace

bool can_reduce_slots(DataType dtype, Reduction reduction) noexcept {
  const bool is_sum = reduction == Reduction::kSum || reduction == Reduction::kAverage;
  return is_sum && kernel_for(dtype) != nullptr;
}

Status reduce_slots(const ReduceSlotsCall& call, cuda::StreamView stream) {
  if (!can_reduce_slots(call.dtype, call.reduction)) return no_kernel(call.dtype, call.reduction);
  if (call.num_elements == 0) return Status();
  const int divisor = call.divisor == 0 ? call.num_slots : call.divisor;
  ReduceSlotsArguments arguments{.plan = {.reduction = call.reduction, .num_ranks = divisor, .premul_factor = 1},
                                 .slots = call.slots,
                                 .slot_bytes = call.slot_bytes,
                                 .num_slots = call.num_slots,
                                 .own_slot = call.own_slot,
                                 .own = call.own,
                                 .output = call.output,
                                 .num_bytes = call.num_elements * size_of(call.dtype)};
  const size_t span = kThreads * kWide * sizeof(Vector16);
  const auto num_blocks =
      static_cast<int>(std::min((arguments.num_bytes + span - 1) / span, static_cast<size_t>(call.most_blocks)));
  void* parameters[] = {&arguments};
  return launch(kernel_for(call.dtype), {.num_blocks = num_blocks, .num_threads = kThreads}, parameters, stream);
}

Status load_reduce_slots_kernels() {
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    AXON_TRY(cuda::load(kernel_for(dtype)));
  }
  return Status();
}

}  // namespace axon::kernels
