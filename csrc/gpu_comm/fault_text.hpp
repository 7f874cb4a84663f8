// Translates a kernel's fault report into the host path's error texts. Kernels report local indices, the texts name
// ranks of the group.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "gpu_comm/local_team.hpp"

namespace axon::gpu_comm {

// Returns the first fault of this rank's team, or ok. Cheap if there is no fault. `remote_peer`: the rank that all
// reports concern, which may be on another host; −1: they name it themselves.
Status fault_in(const cuda::TeamControl& control, const LocalTeam& team, int remote_peer = -1);

// Returns "all_reduce (float32, 8 elements, SUM)". The tag counts for messages only.
std::string describe(const cuda::DeviceDescriptor& call, uint32_t tag, const LocalTeam& team);

}  // namespace axon::gpu_comm
