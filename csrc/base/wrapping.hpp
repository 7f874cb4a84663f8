// Numbers that count up and wrap around.
#pragma once

#include <cstdint>

namespace axon {

// Returns whether `left` is less than half the range ahead of `right`.
constexpr bool is_later(uint32_t left, uint32_t right) noexcept {
  return static_cast<int32_t>(left - right) > 0;
}

}  // namespace axon
