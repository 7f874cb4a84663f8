// Replaces csrc/memory/shared_pages.hpp: the pages that were made last, without a kernel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/status.hpp"
#include "scheduler.hpp"

namespace axon {

class SharedPages {
 public:
  static Result<SharedPages> make(size_t num_bytes) {
    model::check(num_bytes <= sizeof memory_, "the memory is large enough");
    std::ranges::fill(memory_, std::byte{0});
    return SharedPages();
  }
  static Result<SharedPages> open(int32_t /*pid*/, int /*descriptor*/, size_t /*num_bytes*/) { return SharedPages(); }

  std::byte* data() const noexcept { return std::begin(memory_); }
  int descriptor() const noexcept { return -1; }
  void close() noexcept {}

 private:
  alignas(128) static inline std::byte memory_[1024];
};

}  // namespace axon
