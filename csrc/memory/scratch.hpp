// Host scratch memory for algorithms: page-aligned, kept for reuse, bounded by its users' peak demand.
//
//   Buffer buffer = pool.take(num_bytes);
//   pool.give_back(buffer);
//
// Algorithms take theirs from their Exchange (Exchange::scratch), which gives it back when no transfer can access it.
// Progress owner only, like SizeClassPool. Sizes are rounded up to a power of two, so that the pool settles after the
// first operations. The memory kept for reuse never exceeds kMostKept.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "memory/buffer.hpp"

namespace axon {

class ScratchPool {
 public:
  static constexpr size_t kMostKept = size_t{64} << 20;

  ScratchPool() = default;
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  Buffer take(size_t num_bytes);
  void give_back(Buffer buffer) noexcept;
  // For memory that a transfer which never ends may still access: it is kept until the pool is destroyed.
  void give_up(Buffer buffer) { given_up_.push_back(buffer.data); }
  size_t num_bytes_kept() const noexcept { return num_bytes_kept_; }

 private:
  std::map<size_t, std::vector<std::byte*>> free_;  // by rounded size
  std::vector<std::byte*> given_up_;
  size_t num_bytes_kept_ = 0;
};

}  // namespace axon
