// Capture into CUDA graphs: who captures, and how to call CUDA beside it.
#pragma once

#include <driver_types.h>

#include <cstdint>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon {

// Which capture the stream takes part in, a number unique in the process; 0: none. Fails for the legacy default stream
// while a blocking stream captures.
Result<uint64_t> capture_of(StreamView stream);

Result<bool> is_capturing(StreamView stream);

// In its scope this thread may allocate, map and synchronise although somebody captures in global mode, as torch does:
// such calls would fail and spoil the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept;
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's other one, while this lives
};

}  // namespace axon
