// Translates a kernel's fault report into the host path's error texts.
#pragma once

#include "base/status.hpp"
#include "cuda/device_types.hpp"

namespace axon::gpu_comm {

// Returns the first fault of the team of `rank`, or ok. Cheap if there is no fault.
Status fault_in(const cuda::TeamControl& control, int rank);

}  // namespace axon::gpu_comm
