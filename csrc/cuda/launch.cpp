#include "cuda/launch.hpp"

#include <cuda_runtime_api.h>

#include "cuda/error.hpp"

namespace axon {

Status launch(const void* kernel, LaunchShape shape, void** arguments, StreamView stream) {
  AXON_CUDA_TRY(cudaLaunchKernel(kernel, dim3(shape.num_blocks), dim3(shape.num_threads), arguments,
                                 shape.num_shared_bytes, stream.get()));
  return Status();
}

Status load(const void* kernel, size_t num_shared_bytes) {
  cudaFuncAttributes attributes{};
  AXON_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
  if (num_shared_bytes == 0) return Status();
  AXON_CUDA_TRY(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(num_shared_bytes)));
  return Status();
}

}  // namespace axon
