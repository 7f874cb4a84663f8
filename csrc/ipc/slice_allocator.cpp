#include "ipc/slice_allocator.hpp"

#include <algorithm>

namespace axon::ipc {

SliceAllocator::SliceAllocator(size_t begin, size_t end)
    : begin_(begin), taken_(end > begin ? (end - begin) / kUnit : 0) {}

std::optional<ArenaSlice> SliceAllocator::take() {
  if (2 * num_taken_ < taken_.size()) {
    if (const auto first = find_from_begin(kLargeSlice / kUnit)) return mark(*first, kLargeSlice / kUnit);
  }
  const auto last = std::find(taken_.rbegin(), taken_.rend(), false);
  if (last == taken_.rend()) return std::nullopt;
  return mark(static_cast<size_t>(taken_.rend() - last) - 1, kSmallSlice / kUnit);
}

void SliceAllocator::give_back(ArenaSlice slice) {
  const size_t num_units = slice.num_bytes / kUnit;
  std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>((slice.offset - begin_) / kUnit), num_units, false);
  num_taken_ -= num_units;
}

std::optional<size_t> SliceAllocator::find_from_begin(size_t num_units) const noexcept {
  for (size_t first = 0; first + num_units <= taken_.size(); ++first) {
    if (is_free(first, num_units)) return first;
  }
  return std::nullopt;
}

bool SliceAllocator::is_free(size_t first, size_t num_units) const noexcept {
  const auto begin = taken_.begin() + static_cast<std::ptrdiff_t>(first);
  return std::none_of(begin, begin + static_cast<std::ptrdiff_t>(num_units), [](bool taken) { return taken; });
}

ArenaSlice SliceAllocator::mark(size_t first, size_t num_units) {
  std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(first), num_units, true);
  num_taken_ += num_units;
  return {.offset = begin_ + first * kUnit, .num_bytes = num_units * kUnit};
}

}  // namespace axon::ipc
