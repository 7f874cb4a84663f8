#include "cuda/launch.hpp"

#include <cuda_runtime_api.h>

#include "cuda/error.hpp"

namespace axon::cuda {

Status launch(const void* kernel, LaunchShape shape, void** arguments, StreamView stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{.gridDim = dim3(shape.num_blocks),
                                  .blockDim = dim3(shape.num_threads),
                                  .dynamicSmemBytes = shape.num_shared_bytes,
                                  .stream = stream.get(),
                                  .attrs = &early,
                                  .numAttrs = 1};
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
  AXON_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
  if (num_shared_bytes == 0) return Status();
  AXON_CUDA_TRY(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(num_shared_bytes)));
  return Status();
}

}  // namespace axon::cuda
