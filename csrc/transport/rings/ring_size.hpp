// The capacity of a ring. tests/model replaces this file by one whose rings wrap around after a few messages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace axon::ring_size {

inline constexpr uint32_t kNumEntries = 4096;
// The largest payload in a ring. Longer ones wait at their sender.
inline constexpr size_t kMostBytes = size_t{64} << 10;
// The reader reports its count to the writer after each this many entries.
inline constexpr uint32_t kNumEntriesPerReturn = 32;

}  // namespace axon::ring_size
