// Assigns slices of a device arena to groups. Pure arithmetic, without memory of its own; the caller locks.
//
// The first groups get large slices, which hold their messages of medium size. Once half of the arena is taken, a group
// gets a small slice. Large slices grow from the beginning and small ones from the end, so that they do not fragment
// each other's space.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace axon::ipc {

struct ArenaSlice {
  size_t offset = 0;
  size_t num_bytes = 0;  // 0: no slice
};

class SliceAllocator {
 public:
  static constexpr size_t kUnit = size_t{1} << 20;
  static constexpr size_t kSmallSlice = kUnit;
  static constexpr size_t kLargeSlice = 16 * kUnit;

  // Covers [begin, end) in whole units.
  SliceAllocator(size_t begin, size_t end);

  // Returns nullopt if everything is taken.
  std::optional<ArenaSlice> take();
  void give_back(ArenaSlice slice);

  size_t num_bytes_taken() const noexcept { return num_taken_ * kUnit; }

 private:
  std::optional<size_t> find_from_begin(size_t num_units) const noexcept;
  bool is_free(size_t first, size_t num_units) const noexcept;
  ArenaSlice mark(size_t first, size_t num_units);

  const size_t begin_;
  std::vector<bool> taken_;  // by unit
  size_t num_taken_ = 0;
};

}  // namespace axon::ipc
