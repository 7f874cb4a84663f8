#include "cuda/launch.hpp"

#include <cuda_runtime_api.h>

#include <atomic>

#include "cuda/device.hpp"
#include "cuda/error.hpp"

namespace axon::cuda {

static constexpr int kHopper = 90;  // compute capability 9.0

// False once code was loaded that does not begin with griddepcontrol.wait, which GPUs older than Hopper lack: it must
// not start early. The code is compiled for a GPU, or from PTX that may be older than the GPU.
static std::atomic<bool> kernels_await_stream{true};

Status launch(const void* kernel, LaunchShape shape, void** arguments, StreamView stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{.gridDim = dim3(shape.num_blocks),
                                  .blockDim = dim3(shape.num_threads),
                                  .dynamicSmemBytes = shape.num_shared_bytes,
                                  .stream = stream.get(),
                                  .attrs = &early,
                                  .numAttrs = kernels_await_stream.load(std::memory_order_relaxed) ? 1u : 0u};
  AXON_CUDA_TRY(cudaLaunchKernelExC(&config, kernel, arguments));
  return Status();
}

Result<cudaGraphNode_t> add_kernel(cudaGraph_t graph, std::span<const cudaGraphNode_t> dependencies, const void* kernel,
                                   LaunchShape shape, void** arguments) {
  const cudaKernelNodeParams node{.func = const_cast<void*>(kernel),
                                  .gridDim = dim3(shape.num_blocks),
                                  .blockDim = dim3(shape.num_threads),
                                  .sharedMemBytes = static_cast<unsigned>(shape.num_shared_bytes),
                                  .kernelParams = arguments,
                                  .extra = nullptr};
  cudaGraphNode_t made = nullptr;
  AXON_CUDA_TRY(cudaGraphAddKernelNode(&made, graph, dependencies.data(), dependencies.size(), &node));
  return made;
}

Status load(const void* kernel, size_t num_shared_bytes) {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaErrorNoKernelImageForDevice) return no_code_for(current_device());
  if (error != cudaSuccess) return cuda_failure(error, "cudaFuncGetAttributes");
  if (attributes.ptxVersion < kHopper) kernels_await_stream.store(false, std::memory_order_relaxed);
  if (num_shared_bytes == 0) return Status();
  AXON_CUDA_TRY(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(num_shared_bytes)));
  return Status();
}

}  // namespace axon::cuda
