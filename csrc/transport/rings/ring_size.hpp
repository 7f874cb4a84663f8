// How much a ring holds. tests/model has a file of this name in its place, of whose rings a few messages go around.
#pragma once

#include <cstddef>
#include <cstdint>

namespace axon::ring_size {

inline constexpr uint32_t kNumLines = 1024;
// Of a payload: longer ones are as quick through UCX.
inline constexpr size_t kMostBytes = 1024;
// The reader has taken as many when it tells the writer.
inline constexpr uint32_t kNumLinesPerReturn = kNumLines / 32;

}  // namespace axon::ring_size
