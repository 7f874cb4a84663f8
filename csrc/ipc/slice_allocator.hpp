// Which parts of a device arena belong to which group; arithmetic only.
//
// The first groups get much, so that their messages of middle size fit; once half is taken, a group gets little. Large
// slices grow from the begin, small ones from the end, so that they do not break up each other's room.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace axon::ipc {

struct ArenaSlice {
  size_t offset = 0;
  size_t num_bytes = 0;  // 0: none
};

class SliceAllocator {
 public:
  static constexpr size_t kUnit = size_t{1} << 20;
  static constexpr size_t kSmallSlice = kUnit;
  static constexpr size_t kLargeSlice = 16 * kUnit;

  // Over [begin, end), whole units.
  SliceAllocator(size_t begin, size_t end);

  // None if all is taken.
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
