// What a kernel has reported, in the words of the host path.
#pragma once

#include "base/status.hpp"
#include "cuda/device_types.hpp"

namespace axon::gpu_comm {

// The first fault of a team, if there is one; `rank` is whose team it is. Cheap where there is none.
Status fault_in(const cuda::TeamControl& control, int rank);

}  // namespace axon::gpu_comm
