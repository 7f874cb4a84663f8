// A marker at a point in a stream's work. A load of its flag says whether the stream has passed it, without a CUDA
// call.
//
//   Result<StreamMarker> marker = StreamMarker::set(stream);
//   engine.wait_for_flag(item, marker.value().flag());   // starts the item after all work that the stream held
//
// Owns its flag. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::ipc {

class StreamMarker {
 public:
  // The stream must not be under capture. Allocates at times, which may wait for a busy device.
  static Result<StreamMarker> set(cuda::StreamView stream);
  // The same in two steps, for callers that hold locks in the second: it allocates nothing. A marker that is not placed
  // counts as passed.
  static Result<StreamMarker> make();
  Status place(cuda::StreamView stream);
  StreamMarker(StreamMarker&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  StreamMarker& operator=(StreamMarker&&) = delete;
  // The flag is used again after the stream has passed it.
  ~StreamMarker();

  // Nonzero after the stream has passed the marker. Valid as long as the marker.
  const std::atomic<uint32_t>& flag() const noexcept { return *flag_; }

 private:
  explicit StreamMarker(std::atomic<uint32_t>* flag) noexcept : flag_(flag) {}
  std::atomic<uint32_t>* flag_;  // null after a move
};

}  // namespace axon::ipc
