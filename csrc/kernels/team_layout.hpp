// Computes the layout of a rank's slice. A pure function.
#pragma once

#include "base/status.hpp"
#include "cuda/device_types.hpp"

namespace axon::kernels {

inline constexpr size_t kMinSliceBytes = size_t{1} << 20;
inline constexpr size_t kMaxSliceBytes = size_t{64} << 20;

// For 2 to kMaxTeamRanks ranks. Half of the slice is for LL packets, a quarter for the channels of collectives, and the
// rest for the channels of point-to-point messages. At 4 ranks, 16 MiB serve one-shot all_reduce of 512 KiB, two-shot
// all_reduce of 1 MiB, and LL128 at full bandwidth. 1 MiB serves everything with fewer channels.
Result<cuda::TeamLayout> lay_out(int num_ranks, size_t slice_bytes);

}  // namespace axon::kernels
