// Capture into CUDA graphs: who captures, and how to call CUDA beside it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::cuda {

// Which capture the stream takes part in, a number unique in the process; 0: none. Fails for the legacy default stream
// while a blocking stream captures.
Result<uint64_t> capture_of(StreamView stream);

Result<bool> is_capturing(StreamView stream);

// The graph that the stream is being captured into, and whatever is instantiated from it, keep this until they are gone
// and no launch of them runs. It is let go on a thread of CUDA's, so its destruction must not call CUDA.
Status keep_with_graph(StreamView capturing, std::shared_ptr<void> kept);

// In its scope this thread may allocate, map and synchronise although somebody captures in global mode, as torch does:
// such calls would fail and spoil the capture. Makes no context.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's other one, while this lives
  const bool is_relaxed_;
};

}  // namespace axon::cuda
