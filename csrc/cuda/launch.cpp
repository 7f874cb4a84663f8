#include "cuda/launch.hpp"

#include <cuda_runtime_api.h>

#include "cuda/error.hpp"

namespace axon {

Status launch(const void* kernel, LaunchShape shape, void** arguments, StreamView stream) {
  AXON_CUDA_TRY(cudaLaunchKernel(kernel, dim3(shape.num_blocks), dim3(shape.num_threads), arguments, 0, stream.get()));
  return Status();
}

Status load(const void* kernel) {
  cudaFuncAttributes attributes{};
  AXON_CUDA_TRY(cudaFuncGetAttributes(&attributes, kernel));
  return Status();
}

}  // namespace axon
