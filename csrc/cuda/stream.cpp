#include "cuda/stream.hpp"

#include <cuda_runtime_api.h>

#include "cuda/error.hpp"

namespace axon::cuda {

Status EventView::synchronize() const {
  AXON_CUDA_TRY(cudaEventSynchronize(event_));
  return Status();
}

bool EventView::has_passed() const noexcept {
  const cudaError_t answer = cudaEventQuery(event_);
  if (answer == cudaErrorNotReady) (void)cudaGetLastError();  // later calls would report it as their own error
  return answer == cudaSuccess;
}

Result<float> EventView::microseconds_since(EventView earlier) const {
  float milliseconds = 0;
  AXON_CUDA_TRY(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
  return milliseconds * 1000;
}

Status StreamView::record(EventView event) const {
  AXON_CUDA_TRY(cudaEventRecord(event.get(), stream_));
  return Status();
}

Status StreamView::wait(EventView event) const {
  AXON_CUDA_TRY(cudaStreamWaitEvent(stream_, event.get(), 0));
  return Status();
}

Status StreamView::synchronize() const {
  AXON_CUDA_TRY(cudaStreamSynchronize(stream_));
  return Status();
}

bool StreamView::is_idle() const noexcept {
  const cudaError_t answer = cudaStreamQuery(stream_);
  if (answer == cudaErrorNotReady) (void)cudaGetLastError();  // as above
  return answer == cudaSuccess;
}

Status StreamView::check() const {
  const cudaError_t answer = cudaStreamQuery(stream_);
  if (answer == cudaErrorNotReady) (void)cudaGetLastError();  // as above
  if (answer == cudaSuccess || answer == cudaErrorNotReady) return Status();
  return cuda_failure(answer, "cudaStreamQuery");
}

void StreamDeleter::operator()(cudaStream_t stream) const noexcept {
  (void)cudaStreamDestroy(stream);
}
void EventDeleter::operator()(cudaEvent_t event) const noexcept {
  (void)cudaEventDestroy(event);
}

Result<Stream> Stream::create() {
  cudaStream_t stream = nullptr;
  AXON_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

Result<Event> Event::create() {
  cudaEvent_t event = nullptr;
  AXON_CUDA_TRY(cudaEventCreate(&event));
  return Event(event);
}

Result<Event> Event::create_untimed() {
  cudaEvent_t event = nullptr;
  AXON_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

}  // namespace axon::cuda
