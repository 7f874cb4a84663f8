// What a build with AXON_CUDA=0 has in place of cuda/registered_memory.cpp.
#include "c10d/registered_memory.hpp"

namespace axon::c10d_backend {

bool has_registered_memory(c10::DeviceIndex) noexcept {
  return false;
}

}  // namespace axon::c10d_backend
