#include "cuda/capture.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/driver.hpp"
#include "cuda/error.hpp"

namespace axon::cuda {

Result<uint64_t> capture_of(StreamView stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;  // the type that CUDA requires
  AXON_CUDA_TRY(cudaStreamGetCaptureInfo(stream.get(), &status, &id));
  return uint64_t{status == cudaStreamCaptureStatusActive ? id : 0};
}

Result<bool> is_capturing(StreamView stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  AXON_CUDA_TRY(cudaStreamIsCapturing(stream.get(), &status));
  return status != cudaStreamCaptureStatusNone;
}

Status keep_with_graph(StreamView capturing, std::shared_ptr<void> kept) {
  using Kept = std::shared_ptr<void>;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  AXON_CUDA_TRY(cudaStreamGetCaptureInfo(capturing.get(), &status, nullptr, &graph));
  auto owned = std::make_unique<Kept>(std::move(kept));
  cudaUserObject_t object = nullptr;
  AXON_CUDA_TRY(cudaUserObjectCreate(
      &object, owned.get(), [](void* data) { delete static_cast<Kept*>(data); }, 1, cudaUserObjectNoDestructorSync));
  (void)owned.release();  // now owned by the CUDA user object
  const cudaError_t error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error == cudaSuccess) return Status();
  (void)cudaUserObjectRelease(object, 1);
  return cuda_failure(error, "cudaGraphRetainUserObject");
}

// CUDA cannot say whether a graph is the body of a conditional node. CUDA 13.0 refuses to instantiate such a body
// alone, and instantiates other graphs that are being captured.
Result<bool> is_body_of_conditional(StreamView capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  AXON_CUDA_TRY(cudaStreamGetCaptureInfo(capturing.get(), &status, nullptr, &graph));
  const RelaxedCapture may_instantiate;
  cudaGraphExec_t instance = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&instance, graph, 0);
  if (error == cudaSuccess) {
    AXON_CUDA_TRY(cudaGraphExecDestroy(instance));
    return false;
  }
  (void)cudaGetLastError();
  return error == cudaErrorNotSupported;
}

Status call_beside(StreamView capturing, void (*function)(void* data), void* data) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* before = nullptr;
  const cudaGraphEdgeData* edges = nullptr;  // the call waits for whole nodes
  size_t num_before = 0;
  AXON_CUDA_TRY(cudaStreamGetCaptureInfo(capturing.get(), &status, nullptr, &graph, &before, &edges, &num_before));
  const cudaHostNodeParams call{.fn = function, .userData = data};
  cudaGraphNode_t node = nullptr;
  AXON_CUDA_TRY(cudaGraphAddHostNode(&node, graph, before, num_before, &call));
  return Status();
}

// Uses the driver's call, since the runtime's call first creates a context on the thread's device. That is GPU 0 for a
// thread that has not chosen a device yet.
static bool exchange_mode(CUstreamCaptureMode& mode) noexcept {
  const Result<const CudaDriver*> driver = load_driver();
  return driver.ok() && driver.value()->thread_exchange_stream_capture_mode(&mode) == CUDA_SUCCESS;
}

RelaxedCapture::RelaxedCapture() noexcept : is_relaxed_(exchange_mode(mode_)) {}

RelaxedCapture::~RelaxedCapture() {
  if (is_relaxed_) (void)exchange_mode(mode_);
}

}  // namespace axon::cuda
