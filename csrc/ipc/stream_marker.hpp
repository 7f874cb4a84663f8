// A point in a stream's work. Whether it has been passed is seen by looking at a word, without a call of CUDA's.
//
//   Result<StreamMarker> marker = StreamMarker::set(stream);
//   engine.wait_for_flag(item, marker.value().word());            // opened once all has run that the stream held
//
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::ipc {

class StreamMarker {
 public:
  // Of a stream that is not captured.
  static Result<StreamMarker> set(cuda::StreamView stream);
  StreamMarker(StreamMarker&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
  StreamMarker& operator=(StreamMarker&&) = delete;
  // Its word is used again once it has been passed.
  ~StreamMarker();

  // Not 0 any more: passed. As long as the marker.
  const std::atomic<uint32_t>& word() const noexcept { return *word_; }

 private:
  explicit StreamMarker(std::atomic<uint32_t>* word) noexcept : word_(word) {}
  std::atomic<uint32_t>* word_;  // null: moved away
};

}  // namespace axon::ipc
