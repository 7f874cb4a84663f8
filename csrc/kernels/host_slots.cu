#include "kernels/host_slots.hpp"

#include <algorithm>

#include "cuda/launch.hpp"
#include "kernels/ptx.cuh"

namespace axon::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // vectors per thread
constexpr uint64_t kSpanVectors = uint64_t{kThreads} * kInFlight;
constexpr uint64_t kSpanBytes = kSpanVectors * sizeof(Vector16);
// As many as reach the full speed of the bus.
constexpr uint64_t kMostBlocks = 16;
constexpr int kMostCopies = 64;  // of a launch, whose arguments are limited to 4 KiB; two sets must fit

struct SlotArguments {
  const uint32_t* awaited_flag;
  uint32_t awaited;
  uint32_t value;
  uint32_t* flag;
  uint32_t* has_expired;
  uint64_t longest_wait_ns;
  int num_copies;
  SlotCopy copies[kMostCopies];
};

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// Called by one thread. Returns whether the slot may be copied.
__device__ bool await_slot(const SlotArguments& call) {
  if (load_relaxed(call.has_expired) != 0) return false;
  const uint64_t begin = global_timer();
  for (uint32_t flag = load_acquire(call.awaited_flag);; flag = load_acquire(call.awaited_flag)) {
    if (flag == kSlotFailed) return false;
    if (flag >= call.awaited) return true;
    if (global_timer() - begin > call.longest_wait_ns) {
      store_relaxed(call.has_expired, 1);
      return false;
    }
  }
}

// Copies one span of the vectors, and with the first one the bytes before and after all vectors.
__device__ __forceinline__ void copy_span(const SlotCopy& copy, uint64_t span) {
  const uint64_t num_before =
      min((sizeof(Vector16) - reinterpret_cast<uintptr_t>(copy.source) % sizeof(Vector16)) % sizeof(Vector16),
          copy.num_bytes);
  const uint64_t num_vectors = (copy.num_bytes - num_before) / sizeof(Vector16);
  const std::byte* const source = copy.source + num_before;
  std::byte* const target = copy.target + num_before;
  const uint64_t first = span * kSpanVectors + threadIdx.x;
  Vector16 vectors[kInFlight];
#pragma unroll
  for (int k = 0; k < kInFlight; ++k) {
    if (first + k * kThreads < num_vectors)
      vectors[k] = load_vector(source + (first + k * kThreads) * sizeof(Vector16));
  }
#pragma unroll
  for (int k = 0; k < kInFlight; ++k) {
    if (first + k * kThreads < num_vectors)
      store_vector(target + (first + k * kThreads) * sizeof(Vector16), vectors[k]);
  }
  if (span != 0) return;
  const uint64_t after = num_before + num_vectors * sizeof(Vector16);
  const auto copy_byte = [&](uint64_t index) {
    copy.target[index] = const_cast<const volatile std::byte*>(copy.source)[index];
  };
  if (threadIdx.x < num_before) copy_byte(threadIdx.x);
  if (after + threadIdx.x < copy.num_bytes) copy_byte(after + threadIdx.x);
}

__host__ __device__ __forceinline__ uint64_t count_spans(uint64_t num_bytes) {
  return (num_bytes + kSpanBytes - 1) / kSpanBytes;
}

__device__ __forceinline__ void move(const SlotArguments& call) {
  __shared__ bool may_copy;
  if (threadIdx.x == 0) may_copy = call.awaited_flag == nullptr || await_slot(call);
  __syncthreads();
  if (may_copy) {
    uint64_t number = 0;  // of a span, among those of all copies
    for (int index = 0; index < call.num_copies; ++index) {
      const SlotCopy& copy = call.copies[index];
      const uint64_t num_spans = count_spans(copy.num_bytes);
      const uint64_t first = (blockIdx.x + gridDim.x - number % gridDim.x) % gridDim.x;
      for (uint64_t span = first; span < num_spans; span += gridDim.x) copy_span(copy, span);
      number += num_spans;
    }
  }
  if (call.flag == nullptr || !may_copy) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();
  store_release(call.flag, call.value);
}

__global__ void __launch_bounds__(kThreads) move_slot_kernel(const __grid_constant__ SlotArguments call) {
  await_stream();
  move(call);
}

// One block: it hands the slot over to the host, and waits until it comes back.
__global__ void __launch_bounds__(kThreads)
    there_and_back_kernel(const __grid_constant__ SlotArguments there, const __grid_constant__ SlotArguments back) {
  await_stream();
  move(there);
  __syncthreads();
  move(back);
}

uint64_t count_all_spans(std::span<const SlotCopy> copies) {
  uint64_t num_spans = 0;
  for (const SlotCopy& copy : copies) num_spans += count_spans(copy.num_bytes);
  return num_spans;
}

const void* kernel_address() {
  return reinterpret_cast<const void*>(&move_slot_kernel);
}

const void* there_and_back_address() {
  return reinterpret_cast<const void*>(&there_and_back_kernel);
}

SlotArguments arguments_of(const SlotCall& call, std::span<const SlotCopy> copies) {
  SlotArguments arguments;
  arguments.awaited_flag = call.awaited_flag;
  arguments.awaited = call.awaited;
  arguments.value = call.value;
  arguments.flag = call.flag;
  arguments.has_expired = call.has_expired;
  arguments.longest_wait_ns = call.longest_wait_ns;
  arguments.num_copies = static_cast<int>(copies.size());
  std::copy(copies.begin(), copies.end(), arguments.copies);  // the kernel reads no others
  return arguments;
}

bool fits_one_block(const SlotCall& call) {
  return call.copies.size() <= kMostCopies && count_all_spans(call.copies) <= 4;
}

}  // namespace

// The flag is set by a launch of one block, which follows all copies.
Status move_slot(const SlotCall& call, cuda::StreamView stream) {
  // One warp waits for the host. The blocks that copy come after it, and find the flag set.
  if (call.awaited_flag != nullptr && count_all_spans(call.copies) > 1) {
    SlotArguments wait = arguments_of(call, {});
    wait.flag = nullptr;
    void* parameters[] = {&wait};
    AXON_TRY(cuda::launch(kernel_address(), {.num_blocks = 1, .num_threads = 32}, parameters, stream));
  }
  std::span<const SlotCopy> left = call.copies;
  for (bool is_last = false; !is_last;) {
    const std::span<const SlotCopy> taken = left.first(std::min<size_t>(left.size(), kMostCopies));
    left = left.subspan(taken.size());
    const auto num_blocks = static_cast<int>(std::clamp<uint64_t>(count_all_spans(taken), 1, kMostBlocks));
    is_last = left.empty() && (num_blocks == 1 || call.flag == nullptr);
    SlotArguments arguments = arguments_of(call, taken);
    if (!is_last) arguments.flag = nullptr;
    void* parameters[] = {&arguments};
    AXON_TRY(cuda::launch(kernel_address(), {.num_blocks = num_blocks, .num_threads = kThreads}, parameters, stream));
  }
  return Status();
}

Status move_slot_there_and_back(const SlotCall& there, const SlotCall& back, cuda::StreamView stream) {
  if (!fits_one_block(there) || !fits_one_block(back)) {
    AXON_TRY(move_slot(there, stream));
    return move_slot(back, stream);
  }
  SlotArguments first = arguments_of(there, there.copies);
  SlotArguments second = arguments_of(back, back.copies);
  void* parameters[] = {&first, &second};
  return cuda::launch(there_and_back_address(), {.num_blocks = 1, .num_threads = kThreads}, parameters, stream);
}

Status load_slot_kernels() {
  AXON_TRY(cuda::load(kernel_address()));
  return cuda::load(there_and_back_address());
}

}  // namespace axon::kernels
