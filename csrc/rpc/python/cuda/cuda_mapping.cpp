#include "rpc/python/cuda/cuda_mapping.hpp"

#include <bit>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/device_types.hpp"
#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

CudaMapping::CudaMapping(const rpc::RemoteMemory& remote, int home)
    : remote_(remote), home_(home), pid_(remote.connection()->identity().address.pid) {}

// The address of a mapped extent is an IpcLocation: it counts on with the bytes of the registration.
ipc::ExposedLocation CudaMapping::location_of(size_t extent) const noexcept {
  const auto place = std::bit_cast<cuda::IpcLocation>(remote_.extents()[extent].address);
  const rpc::DeviceLocation& device = remote_.device_location();
  return {.incarnation = device.incarnation,
          .export_table = device.export_table,
          .offset = place.offset,
          .registration = static_cast<uint32_t>(place.registration)};
}

bool CudaMapping::is_usable_from(int gpu) {
  const std::lock_guard lock(mutex_);
  const auto known = usable_.find(gpu);
  if (known != usable_.end()) return known->second;
  return usable_[gpu] = map_for(gpu);
}

bool CudaMapping::map_for(int gpu) const {
  const cuda::RelaxedCapture beside_captures;
  if (remote_.is_of_this_process()) {
    const int owner = remote_.device_location().ordinal;
    return gpu == owner || (cuda::can_access(gpu, owner) && cuda::enable_peer_access(gpu, owner).ok());
  }
  const Result<ipc::BlockCopier*> copier = ipc::BlockCopier::of(gpu);
  if (!copier.ok()) return false;
  for (size_t i = 0; i < remote_.extents().size(); ++i) {
    const uint64_t num_bytes = remote_.extents()[i].num_bytes;
    if (num_bytes != 0 && !copier.value()->await(pid_, location_of(i), num_bytes).ok()) return false;
  }
  return true;
}

Result<std::byte*> CudaMapping::find(ipc::BlockCopier& copier, size_t extent) const {
  const rpc::Extent& wanted = remote_.extents()[extent];
  if (remote_.is_of_this_process()) return reinterpret_cast<std::byte*>(wanted.address);
  return copier.find(pid_, location_of(extent), wanted.num_bytes);
}

// Expandable segments of this process are accessible to kernels of other GPUs only if torch has asked for that.
ipc::BlockCopier::Method CudaMapping::method_from(int gpu) const noexcept {
  using enum ipc::BlockCopier::Method;
  return remote_.is_of_this_process() && gpu != remote_.device_location().ordinal ? kCopyEngine : kAny;
}

}  // namespace axon::rpc_python
