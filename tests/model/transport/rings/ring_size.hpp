// Replaces csrc/transport/rings/ring_size.hpp: a ring that is full after two or three messages of one or two entries.
#pragma once

#include <cstddef>
#include <cstdint>

namespace axon::ring_size {

inline constexpr uint32_t kNumEntries = 4;
inline constexpr size_t kMostBytes = 80;
inline constexpr uint32_t kNumEntriesPerReturn = 2;

}  // namespace axon::ring_size
