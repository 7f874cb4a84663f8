// A marker at a point in a stream's work. A load of its flag says whether the stream has passed it, without a CUDA
// call.
//
//   Result<StreamMarker> marker = StreamMarker::set(stream);
//   engine.wait_for_flag(item, marker.value().word());   // starts the item after all work that the stream held
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
  // The stream must not be under capture.
  static Result<StreamMarker> set(cuda::StreamView stream);
  StreamMarker(StreamMarker&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
  StreamMarker& operator=(StreamMarker&&) = delete;
  // The flag is used again after the stream has passed it.
  ~StreamMarker();

  // Nonzero after the stream has passed the marker. Valid as long as the marker.
  const std::atomic<uint32_t>& word() const noexcept { return *word_; }

 private:
  explicit StreamMarker(std::atomic<uint32_t>* word) noexcept : word_(word) {}
  std::atomic<uint32_t>* word_;  // null after a move
};

}  // namespace axon::ipc
