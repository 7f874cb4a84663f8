// The capacity of a trigger ring. tests/model replaces this file by one whose ring is full after two triggers.
#pragma once

#include <cstdint>

namespace axon::kernels {

inline constexpr uint32_t kNumTriggers = 1024;

}  // namespace axon::kernels
