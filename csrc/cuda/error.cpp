#include "cuda/error.hpp"

#include <cuda_runtime_api.h>

namespace axon::cuda {

Status cuda_failure(cudaError_t error, const char* call) {
  (void)cudaGetLastError();
  const ErrorCode code = error == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted : ErrorCode::kInternal;
  return Status(code, std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace axon::cuda
