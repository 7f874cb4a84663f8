// Asks whether two GPUs are connected by NVLink. Stateless.
#pragma once

#include "cuda/device.hpp"

namespace axon::cuda {

// Fails unless both are one GPU, or NVLink connects them. The driver's management library is asked about GPUs that
// CUDA_VISIBLE_DEVICES hides from this process.
Status require_nvlink(const DeviceUuid& device, const DeviceUuid& peer);

}  // namespace axon::cuda
