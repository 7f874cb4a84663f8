#include "kernels/host_slots.hpp"

#include <algorithm>

#include "cuda/launch.hpp"
#include "kernels/ptx.cuh"
#include "kernels/trigger_ring.cuh"

namespace axon::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // vectors per thread
constexpr uint64_t kSpanVectors = uint64_t{kThreads} * kInFlight;
constexpr uint64_t kSpanBytes = kSpanVectors * sizeof(Vector16);
// As many as reach the full speed of the bus.
constexpr uint64_t kMostBlocks = 16;
constexpr int kMostCopies = 64;  // of a launch, whose arguments are limited to 4 KiB; two sets must fit
constexpr int kFewCopies = 4;    // short arguments are launched sooner

// Without its copies.
struct SlotCommand {
  const SlotState* awaited;
  SlotState* handed_over;
  Deadline deadline;
  Trigger trigger;
  int num_handed_over;
  int num_copies;
};

template <int kCapacity>
struct SlotArguments : SlotCommand {
  SlotCopy copies[kCapacity];
};

// The counts of the device's ring.
__device__ uint32_t num_triggered;
__device__ uint32_t num_known_taken;

__device__ __forceinline__ SlotState load_acquire(const SlotState* address) {
  SlotState state;
  asm volatile("ld.acquire.sys.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(state.turn), "=r"(state.has_failed)
               : "l"(address)
               : "memory");
  return state;
}

// Called by one thread. Returns whether the slot may be copied.
__device__ bool await_slot(const SlotCommand& call) {
  SlotState state;
  const bool is_in_time = await(call.deadline, [&] {
    state = load_acquire(call.awaited);
    return state.has_failed != 0 || state.turn == SlotState::kDevicesTurn;
  });
  return is_in_time && state.has_failed == 0;
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

template <int kCapacity>
__device__ __forceinline__ void move(const SlotArguments<kCapacity>& call) {
  __shared__ bool may_copy;
  if (threadIdx.x == 0) {
    if (call.trigger.id != 0 && blockIdx.x == 0)
      TriggerWriter(call.trigger, {num_triggered, num_known_taken}, call.deadline).write();
    may_copy = call.awaited == nullptr || await_slot(call);
  }
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
  if (call.handed_over == nullptr || !may_copy) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();
  for (int i = 0; i < call.num_handed_over; ++i) store_release(&call.handed_over[i].turn, SlotState::kHostsTurn);
}

template <int kCapacity>
__global__ void __launch_bounds__(kThreads) move_slot_kernel(const __grid_constant__ SlotArguments<kCapacity> call) {
  await_stream();
  move(call);
}

// One block: it hands the slot over to the host, and waits until it comes back.
template <int kCapacity>
__global__ void __launch_bounds__(kThreads)
    there_and_back_kernel(const __grid_constant__ SlotArguments<kCapacity> there,
                          const __grid_constant__ SlotArguments<kCapacity> back) {
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

template <int kCapacity>
const void* address_of_move() {
  return reinterpret_cast<const void*>(&move_slot_kernel<kCapacity>);
}

template <int kCapacity>
const void* address_of_there_and_back() {
  return reinterpret_cast<const void*>(&there_and_back_kernel<kCapacity>);
}

template <int kCapacity>
SlotArguments<kCapacity> arguments_of(const SlotCall& call, std::span<const SlotCopy> copies) {
  SlotArguments<kCapacity> arguments;
  arguments.awaited = call.awaited;
  arguments.handed_over = call.handed_over;
  arguments.deadline = {call.has_expired, call.longest_wait_ns};
  arguments.trigger = call.trigger;
  arguments.num_handed_over = call.num_handed_over;
  arguments.num_copies = static_cast<int>(copies.size());
  std::copy(copies.begin(), copies.end(), arguments.copies);  // the kernel reads no others
  return arguments;
}

template <int kCapacity>
Status launch_move(const SlotCall& call, cuda::LaunchShape shape, cuda::StreamView stream) {
  SlotArguments<kCapacity> arguments = arguments_of<kCapacity>(call, call.copies);
  void* parameters[] = {&arguments};
  return cuda::launch(address_of_move<kCapacity>(), shape, parameters, stream);
}

Status launch_move(const SlotCall& call, cuda::LaunchShape shape, cuda::StreamView stream) {
  const bool has_few = call.copies.size() <= kFewCopies;
  return has_few ? launch_move<kFewCopies>(call, shape, stream) : launch_move<kMostCopies>(call, shape, stream);
}

template <int kCapacity>
Status launch_there_and_back(const SlotCall& there, const SlotCall& back, cuda::StreamView stream) {
  SlotArguments<kCapacity> first = arguments_of<kCapacity>(there, there.copies);
  SlotArguments<kCapacity> second = arguments_of<kCapacity>(back, back.copies);
  void* parameters[] = {&first, &second};
  return cuda::launch(address_of_there_and_back<kCapacity>(), {.num_blocks = 1, .num_threads = kThreads}, parameters,
                      stream);
}

bool fits_one_block(const SlotCall& call) {
  return call.copies.size() <= kMostCopies && count_all_spans(call.copies) <= 4;
}

}  // namespace

// The slot is handed over by a launch of one block, which follows all copies.
Status move_slot(const SlotCall& call, cuda::StreamView stream) {
  SlotCall part = call;
  // One warp waits for the host. The blocks that copy come after it, and find that it is their turn.
  if (call.awaited != nullptr && count_all_spans(call.copies) > 1) {
    part.copies = {};
    part.handed_over = nullptr;
    AXON_TRY(launch_move(part, {.num_blocks = 1, .num_threads = 32}, stream));
    part.trigger = {};
  }
  std::span<const SlotCopy> left = call.copies;
  for (bool is_last = false; !is_last; part.trigger = {}) {
    part.copies = left.first(std::min<size_t>(left.size(), kMostCopies));
    left = left.subspan(part.copies.size());
    const auto num_blocks = static_cast<int>(std::clamp<uint64_t>(count_all_spans(part.copies), 1, kMostBlocks));
    is_last = left.empty() && (num_blocks == 1 || call.handed_over == nullptr);
    part.handed_over = is_last ? call.handed_over : nullptr;
    AXON_TRY(launch_move(part, {.num_blocks = num_blocks, .num_threads = kThreads}, stream));
  }
  return Status();
}

Status move_slot_there_and_back(const SlotCall& there, const SlotCall& back, cuda::StreamView stream) {
  if (!fits_one_block(there) || !fits_one_block(back)) {
    AXON_TRY(move_slot(there, stream));
    return move_slot(back, stream);
  }
  const bool have_few = std::max(there.copies.size(), back.copies.size()) <= kFewCopies;
  return have_few ? launch_there_and_back<kFewCopies>(there, back, stream)
                  : launch_there_and_back<kMostCopies>(there, back, stream);
}

Status load_slot_kernels() {
  for (const void* kernel : {address_of_move<kFewCopies>(), address_of_move<kMostCopies>(),
                             address_of_there_and_back<kFewCopies>(), address_of_there_and_back<kMostCopies>()}) {
    AXON_TRY(cuda::load(kernel));
  }
  return Status();
}

}  // namespace axon::kernels
