// How much a ring holds. tests/model has a file of this name in its place, of whose rings a few messages go around.
#pragma once

#include <cstddef>
#include <cstdint>

namespace axon::ring_size {

inline constexpr uint32_t kNumEntries = 4096;
// Of a payload: longer ones wait at their sender.
inline constexpr size_t kMostBytes = size_t{64} << 10;
// The reader has taken as many when it tells the writer.
inline constexpr uint32_t kNumEntriesPerReturn = 32;

}  // namespace axon::ring_size
