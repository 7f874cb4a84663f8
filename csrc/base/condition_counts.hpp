// The memory by which threads and kernels share a condition (axon/condition.hpp). It begins a page of its own, which a
// device maps.
#pragma once

#include <cstdint>

namespace axon {

struct ConditionCounts {
  alignas(64) uint32_t num_set_by_host;    // written by this process
  alignas(64) uint32_t num_set_by_device;  // written by kernels of one device
  alignas(64) uint32_t has_ended;          // written by this process: 1 if it is not set any more, which ends all waits
  alignas(64) uint32_t has_timed_out;      // written by kernels: 1 if one of them has waited for too long
};

}  // namespace axon
