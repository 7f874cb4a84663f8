// Capture into CUDA graphs: which capture a stream is part of, and how to call CUDA during one.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::cuda {

// Returns the number of the capture that the stream is part of, unique in the process, or 0. Fails for the legacy
// default stream while a blocking stream is under capture.
Result<uint64_t> capture_of(StreamView stream);

Result<bool> is_capturing(StreamView stream);

// The graph that the stream is captured into, and every instance of it, keep this object. They release it when they are
// destroyed and no launch of them runs. A CUDA thread releases it, so its destructor must not call CUDA.
Status keep_with_graph(StreamView capturing, std::shared_ptr<void> kept);

// Returns whether the stream is captured into the body of a conditional node. Takes some µs for each node of the graph.
Result<bool> is_body_of_conditional(StreamView capturing);

// Each launch of the graph that the stream is captured into calls this function on a thread of CUDA's, when the work
// before it has ended. Nothing in the graph waits for the call, but the graph's end does. It must not call CUDA. A
// graph whose conditional node has such a call in its body cannot be instantiated.
Status call_beside(StreamView capturing, void (*function)(void* data), void* data);

// In its scope this thread may allocate, map and synchronise during captures in global mode, which torch uses. Without
// it, such calls fail and invalidate the capture. Creates no context.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's former mode while this object lives
  const bool is_relaxed_;
};

}  // namespace axon::cuda
