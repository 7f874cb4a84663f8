// CUDA's error codes as Status.
//
//   AXON_CUDA_TRY(cudaEventRecord(event, stream));      // in a function that returns Status or Result<T>
#pragma once

#include <driver_types.h>

#include "base/status.hpp"

namespace axon::cuda {

// `call` is the text of the failed call. Clears the thread's last error, so that no later call reports it as its own.
Status cuda_failure(cudaError_t error, const char* call);

}  // namespace axon::cuda

#define AXON_CUDA_TRY(call)                                                   \
  do {                                                                        \
    if (cudaError_t axon_cuda_error = (call); axon_cuda_error != cudaSuccess) \
      return ::axon::cuda::cuda_failure(axon_cuda_error, #call);              \
  } while (false)
