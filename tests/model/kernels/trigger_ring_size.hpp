// Replaces csrc/kernels/trigger_ring_size.hpp: a ring that is full after two triggers.
#pragma once

#include <cstdint>

namespace axon::kernels {

inline constexpr uint32_t kNumTriggers = 2;

}  // namespace axon::kernels
