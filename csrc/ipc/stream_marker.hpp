// A point in a stream's work. Whether it has been passed is seen by looking at a word, without a call of CUDA's.
//
//   Result<Mark> mark = Mark::set(stream);
//   engine.watch(item, mark.value().word());            // opened once all has run that the stream held
//
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon {

class Mark {
 public:
  // Of a stream that is not captured.
  static Result<Mark> set(StreamView stream);
  Mark(Mark&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
  Mark& operator=(Mark&&) = delete;
  // Its word is used again once it has been passed.
  ~Mark();

  // Not 0 any more: passed. As long as the mark.
  const std::atomic<uint32_t>& word() const noexcept { return *word_; }

 private:
  explicit Mark(std::atomic<uint32_t>* word) noexcept : word_(word) {}
  std::atomic<uint32_t>* word_;  // null: moved away
};

}  // namespace axon
