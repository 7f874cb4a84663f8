#include "cuda/capture.hpp"

#include <cuda_runtime_api.h>

#include "cuda/error.hpp"

namespace axon {

Result<uint64_t> capture_of(StreamView stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;  // CUDA's type
  AXON_CUDA_TRY(cudaStreamGetCaptureInfo(stream.get(), &status, &id));
  return uint64_t{status == cudaStreamCaptureStatusActive ? id : 0};
}

Result<bool> is_capturing(StreamView stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  AXON_CUDA_TRY(cudaStreamIsCapturing(stream.get(), &status));
  return status != cudaStreamCaptureStatusNone;
}

RelaxedCapture::RelaxedCapture() noexcept {
  (void)cudaThreadExchangeStreamCaptureMode(&mode_);
}

RelaxedCapture::~RelaxedCapture() {
  (void)cudaThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace axon
