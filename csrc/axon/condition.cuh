// Lets CUDA streams, nodes of CUDA graphs and kernels set conditions (axon/condition.hpp), and wait for them. Needs
// nvcc 12 or newer and C++20, and no other part of CUDA in the library.
//
//   axon::ConditionOnDevice filled = axon::ConditionOnDevice::make(condition, 30s).value();
//   produce<<<grid, block, 0, stream>>>(buffer);              // in memory that host and device share
//   axon::Status status = filled.set(stream);                 // the transfer starts when the stream gets here
//   status = sent.wait(stream);                               // what follows in the stream waits for its end
//
//   __global__ void produce(axon::DeviceCondition filled, float* buffer) {   // filled.device()
//     // … the only block writes the buffer …
//     axon::set(filled);
//   }
//
// All of this may be captured into a CUDA graph and replayed, or added to one as nodes. A wait ends when the condition
// has ended, and after the given time: the stream goes on, and Condition::status() has the reason.
//
// Kernels do not wake the library's thread. So calls that set a condition announce that in addition, and polling
// begins. It ends 10 s after the last time that a kernel has set a condition. A kernel that calls axon::set() needs
// expect() before its launch. Otherwise up to half a second may pass until an idle process notices.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cuda/atomic>
#include <span>
#include <string>
#include <utility>

#include "axon/condition.hpp"

namespace axon {

// A condition, for kernels.
struct DeviceCondition {
  ConditionCounts* counts;  // in host memory
  uint32_t* num_set;        // how often kernels have set it; in device memory, as the next one
  uint32_t* num_waited;     // how often streams have waited for it
  uint64_t timeout_ns;
};

namespace detail {

using DeviceCount = cuda::atomic_ref<uint32_t, cuda::thread_scope_device>;
using SystemCount = cuda::atomic_ref<uint32_t, cuda::thread_scope_system>;

// Several threads may store their counts out of order. The last one then finds a larger count, and stores that.
__device__ inline void set_by_thread(const DeviceCondition& condition) {
  const DeviceCount num_set(*condition.num_set);
  const SystemCount published(condition.counts->num_set_by_device);
  uint32_t count = num_set.fetch_add(1, cuda::memory_order_acq_rel) + 1;
  while (true) {
    published.store(count, cuda::memory_order_release);
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_system);
    const uint32_t latest = num_set.load(cuda::memory_order_acquire);
    if (latest == count) return;
    count = latest;
  }
}

__device__ inline uint64_t global_nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Waits until the condition has been set this often. Returns false if it will not be, or was not in time.
__device__ inline bool wait_by_thread(const DeviceCondition& condition, uint32_t count) {
  constexpr uint32_t kPollsPerLook = 64;
  const SystemCount by_host(condition.counts->num_set_by_host), has_ended(condition.counts->has_ended);
  const SystemCount has_timed_out(condition.counts->has_timed_out);
  const DeviceCount by_device(*condition.num_set);
  const auto is_set = [&] {
    const uint32_t num_set = by_host.load(cuda::memory_order_acquire) + by_device.load(cuda::memory_order_acquire);
    return static_cast<int32_t>(num_set - count) >= 0;
  };
  const uint64_t begin = global_nanoseconds();
  for (uint32_t num_polls = 0; !is_set(); ++num_polls) {
    if (num_polls % kPollsPerLook != 0) continue;
    if (has_timed_out.load(cuda::memory_order_relaxed) != 0) return false;
    if (has_ended.load(cuda::memory_order_acquire) != 0) return is_set();
    if (global_nanoseconds() - begin < condition.timeout_ns) continue;
    has_timed_out.store(1, cuda::memory_order_relaxed);
    return false;
  }
  return true;
}

__device__ inline bool is_first_thread() {
  return threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
}

// Templates, because a header defines them.
template <typename = void>
__global__ void set_condition(DeviceCondition condition) {
  set_by_thread(condition);
}
template <typename = void>
__global__ void wait_for_condition(DeviceCondition condition) {
  const uint32_t count = *condition.num_waited + 1;
  (void)wait_by_thread(condition, count);
  *condition.num_waited = count;
}

inline Status status_of(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return {ErrorCode::kTransport, std::string(call) + ": " + cudaGetErrorString(error)};
}

}  // namespace detail

/// Block: sets the condition once more. What any thread of the block has written before is visible to all that wait.
__device__ inline void set(const DeviceCondition& condition) {
  __syncthreads();
  if (detail::is_first_thread()) detail::set_by_thread(condition);
}

/// Block: waits until the condition has been set more often than streams have waited for it. Any number of blocks may
/// wait; ConditionOnDevice::wait() follows their kernel in the stream, once for each time.
/// @param times how much more often
/// @return whether it was set; false if it will not be set any more, and after the timeout
__device__ inline bool wait(const DeviceCondition& condition, uint32_t times = 1) {
  const bool has_failed =
      detail::is_first_thread() && !detail::wait_by_thread(condition, *condition.num_waited + times);
  return __syncthreads_or(has_failed) == 0;
}

}  // namespace axon

namespace axon::library {

/// Lets the current device use a condition. It must live until all work that uses it has ended, and the device uses a
/// condition through one of these at a time. Any thread may use it. All waits share one count, so that they must follow
/// one another: in one stream, or as nodes that depend on each other.
class ConditionOnDevice {
 public:
  /// @param condition the condition. Streams wait for what is set from now on.
  /// @param timeout the longest wait of streams and kernels
  /// @return the condition for the current device; or kInvalidArgument, if a device uses it already; or an error of
  /// CUDA
  static Result<ConditionOnDevice> make(const Condition& condition, std::chrono::milliseconds timeout) {
    ConditionOnDevice made(condition);
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
    const std::chrono::nanoseconds limit = std::clamp(timeout, std::chrono::milliseconds::zero(), kLongest);
    Status status = made.allocate(static_cast<uint64_t>(limit.count()));
    using Made = Result<ConditionOnDevice>;
    return status.ok() ? Made(std::move(made)) : Made(std::move(status));
  }
  ConditionOnDevice(ConditionOnDevice&& other) noexcept
      : condition_(other.condition_),
        device_(std::exchange(other.device_, {})),
        is_registered_(std::exchange(other.is_registered_, false)) {}
  ConditionOnDevice& operator=(ConditionOnDevice&& other) noexcept {
    std::swap(condition_, other.condition_);
    std::swap(device_, other.device_);
    std::swap(is_registered_, other.is_registered_);
    return *this;
  }
  ~ConditionOnDevice() {
    if (device_.num_set != nullptr) cudaFree(device_.num_set);
    if (!is_registered_) return;
    cudaHostUnregister(device_.counts);
    condition_.detach_device();
  }

  /// @return the condition
  const Condition& condition() const noexcept { return condition_; }
  /// @return what kernels take
  const DeviceCondition& device() const noexcept { return device_; }

  /// Sets the condition when the stream gets here.
  Status set(cudaStream_t stream) const {
    AXON_TRY(expect(stream));
    return set_unexpectedly(stream);
  }
  /// The same without expect(), whose call the body of a conditional node cannot hold.
  Status set_unexpectedly(cudaStream_t stream) const {
    detail::set_condition<><<<1, 1, 0, stream>>>(device_);
    return detail::status_of("the launch of a kernel", cudaGetLastError());
  }
  /// Makes later work of the stream wait until the condition has been set once more.
  Status wait(cudaStream_t stream) const {
    detail::wait_for_condition<><<<1, 1, 0, stream>>>(device_);
    return detail::status_of("the launch of a kernel", cudaGetLastError());
  }
  /// Announces work of the stream that sets conditions: at once, or at each launch of the graph that it is captured
  /// into.
  Status expect(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t* after = nullptr;
    size_t num_after = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &after, nullptr, &num_after);
#else
    const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &after, &num_after);
#endif
    if (error != cudaSuccess) return detail::status_of("cudaStreamGetCaptureInfo", error);
    if (status == cudaStreamCaptureStatusActive) return add_expect(graph);
    Condition::expect(condition_.engine());
    return {};
  }

  /// Adds a node to a graph that sets the condition.
  /// @param after the nodes that it follows
  Result<cudaGraphNode_t> add_set(cudaGraph_t graph, std::span<const cudaGraphNode_t> after) const {
    Status status = add_expect(graph);
    if (!status.ok()) return Result<cudaGraphNode_t>(std::move(status));
    return add_kernel(graph, after, reinterpret_cast<void*>(&detail::set_condition<>));
  }
  /// Adds a node to a graph that waits until the condition has been set once more.
  /// @param after the nodes that it follows
  Result<cudaGraphNode_t> add_wait(cudaGraph_t graph, std::span<const cudaGraphNode_t> after) const {
    return add_kernel(graph, after, reinterpret_cast<void*>(&detail::wait_for_condition<>));
  }

 private:
  explicit ConditionOnDevice(const Condition& condition) noexcept : condition_(condition) {}

  // The page is registered with CUDA once, so a second device finds that it is.
  Status allocate(uint64_t timeout_ns) {
    ConditionCounts* const counts = condition_.counts();
    const cudaError_t error = cudaHostRegister(counts, sizeof *counts, cudaHostRegisterMapped);
    if (error == cudaErrorHostMemoryAlreadyRegistered) {
      cudaGetLastError();
      return {ErrorCode::kInvalidArgument, "the condition is used by a device already"};
    }
    if (error != cudaSuccess) return detail::status_of("cudaHostRegister", error);
    is_registered_ = true;
    condition_.attach_device();
    device_ = {.counts = counts, .num_set = nullptr, .num_waited = nullptr, .timeout_ns = timeout_ns};
    const uint32_t begin[2] = {counts->num_set_by_device, condition_.num_set()};
    uint32_t* there = nullptr;
    AXON_TRY(detail::status_of("cudaMalloc", cudaMalloc(&there, sizeof begin)));
    device_.num_set = there;
    device_.num_waited = there + 1;
    return detail::status_of("cudaMemcpy", cudaMemcpy(there, begin, sizeof begin, cudaMemcpyHostToDevice));
  }

  // A root without dependants, which delays no other node.
  Status add_expect(cudaGraph_t graph) const {
    const cudaHostNodeParams call{.fn = &Condition::expect, .userData = condition_.engine()};
    cudaGraphNode_t node = nullptr;
    return detail::status_of("cudaGraphAddHostNode", cudaGraphAddHostNode(&node, graph, nullptr, 0, &call));
  }

  Result<cudaGraphNode_t> add_kernel(cudaGraph_t graph, std::span<const cudaGraphNode_t> after, void* kernel) const {
    DeviceCondition argument = device_;
    void* arguments[] = {&argument};
    cudaKernelNodeParams launch{};
    launch.func = kernel;
    launch.gridDim = launch.blockDim = dim3(1);
    launch.kernelParams = arguments;
    cudaGraphNode_t node = nullptr;
    const cudaError_t error = cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &launch);
    if (error != cudaSuccess) return detail::status_of("cudaGraphAddKernelNode", error);
    return node;
  }

  Condition condition_;
  DeviceCondition device_{};
  bool is_registered_ = false;
};

}  // namespace axon::library

namespace axon {

using library::ConditionOnDevice;

}  // namespace axon
