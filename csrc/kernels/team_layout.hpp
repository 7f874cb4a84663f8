// Where everything lies in a rank's slice.
#pragma once

#include "base/status.hpp"
#include "cuda/device_types.hpp"

namespace axon::kernels {

inline constexpr size_t kMinSliceBytes = size_t{1} << 20;
inline constexpr size_t kMaxSliceBytes = size_t{64} << 20;

// For 2 to kMaxTeamRanks ranks. Half of the slice goes to packets, a quarter to the channels of collectives, the rest
// to those of point-to-point messages. At 4 ranks 16 MiB serve one-shot all_reduce of 512 KiB, two-shot of 1 MiB and
// lines at full bandwidth; 1 MiB serves everything with fewer channels.
Result<cuda::TeamLayout> lay_out(int num_ranks, size_t slice_bytes);

}  // namespace axon::kernels
