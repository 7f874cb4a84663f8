// Bytes that grow without being written: resize() leaves what is new to who has asked for it, who writes all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace axon {

struct UnwrittenBytes : std::allocator<std::byte> {
  template <typename>
  struct rebind {
    using other = UnwrittenBytes;
  };
  template <typename... Values>
  void construct(std::byte* place, Values... values) noexcept {
    ::new (static_cast<void*>(place)) std::byte(values...);
  }
  void construct(std::byte*) noexcept {}
};

using ByteVector = std::vector<std::byte, UnwrittenBytes>;

// Of a few bytes, mostly: without a call, which would take longer than the copy.
inline void copy_few(std::byte* to, const void* from, size_t num_bytes) noexcept {
  const auto copy_both_ends = [&]<typename Word>(Word first) {
    Word last = first;
    std::memcpy(&first, from, sizeof first);
    std::memcpy(&last, static_cast<const std::byte*>(from) + num_bytes - sizeof last, sizeof last);
    std::memcpy(to, &first, sizeof first);
    std::memcpy(to + num_bytes - sizeof last, &last, sizeof last);
  };
  if (num_bytes > 16) {
    std::memcpy(to, from, num_bytes);
  } else if (num_bytes >= 8) {
    copy_both_ends(uint64_t{});
  } else if (num_bytes >= 4) {
    copy_both_ends(uint32_t{});
  } else if (num_bytes >= 2) {
    copy_both_ends(uint16_t{});
  } else if (num_bytes == 1) {
    std::memcpy(to, from, 1);
  }
}

}  // namespace axon
