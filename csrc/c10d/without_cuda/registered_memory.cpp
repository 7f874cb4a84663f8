// Replaces cuda/registered_memory.cpp in builds with AXON_CUDA=0.
#include "c10d/registered_memory.hpp"

namespace axon::c10d_backend {

bool has_registered_memory(c10::DeviceIndex) noexcept {
  return false;
}

}  // namespace axon::c10d_backend
