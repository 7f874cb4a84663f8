#include "cuda/device.hpp"

#include <cuda_runtime_api.h>

#include <cstring>

#include "cuda/driver.hpp"
#include "cuda/error.hpp"

namespace axon::cuda {

int num_devices() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

int current_device() noexcept {
  int device = 0;
  (void)cudaGetDevice(&device);
  return device;
}

Result<int> num_multiprocessors_of(int device) {
  int count = 0;
  AXON_CUDA_TRY(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

Result<size_t> shared_bytes_per_block_of(int device) {
  int num_bytes = 0;
  AXON_CUDA_TRY(cudaDeviceGetAttribute(&num_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return static_cast<size_t>(num_bytes);
}

Status no_code_for(int device) {
  cudaDeviceProp properties{};
  AXON_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  const std::string major = std::to_string(properties.major), minor = std::to_string(properties.minor);
  return {ErrorCode::kInvalidArgument,
          "GPU " + std::to_string(device) + " (" + properties.name + ") has compute capability " + major + "." + minor +
              ", and this build of torch_axon has code for " AXON_CUDA_ARCHITECTURES +
              (properties.major < 8 ? ". GPUs older than 8.0 are not supported"
                                    : ": rebuild it with AXON_CUDA_ARCHITECTURES=" + major + minor)};
}

bool can_access(int device, int peer) noexcept {
  int reachable = 0;
  return cudaDeviceCanAccessPeer(&reachable, device, peer) == cudaSuccess && reachable != 0;
}

Status enable_peer_access(int device, int peer) {
  if (device == peer) return Status();
  DeviceGuard guard(device);
  if (!can_access(device, peer)) {
    return Status(ErrorCode::kInvalidArgument,
                  "GPU " + std::to_string(device) + " has no peer access to GPU " + std::to_string(peer));
  }
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
    return cuda_failure(error, "cudaDeviceEnablePeerAccess");
  }
  (void)cudaGetLastError();
  return Status();
}

Result<DeviceUuid> uuid_of(int device) {
  cudaDeviceProp properties{};
  AXON_CUDA_TRY(cudaGetDeviceProperties(&properties, device));
  DeviceUuid uuid{};
  static_assert(sizeof properties.uuid == sizeof uuid);
  std::memcpy(uuid.data(), &properties.uuid, sizeof uuid);
  return uuid;
}

Result<std::string> pci_bus_id_of(int device) {
  char text[32] = {};
  AXON_CUDA_TRY(cudaDeviceGetPCIBusId(text, sizeof text, device));
  return std::string(text);
}

// A failure here appears at the next call on the device, which the caller checks.
DeviceGuard::DeviceGuard(int device) noexcept : former_(current_device()), changed_(former_ != device) {
  (void)cudaSetDevice(device);  // a thread that has not called CUDA yet has a device, but no context
}

// Making a device current creates a context on it: hundreds of MB on GPU 0 for every process of the host.
static bool has_context(int device) noexcept {
  const Result<const CudaDriver*> driver = load_driver();
  unsigned flags = 0;
  int active = 0;
  return driver.ok() && driver.value()->device_primary_ctx_get_state(device, &flags, &active) == CUDA_SUCCESS &&
         active != 0;
}

DeviceGuard::~DeviceGuard() {
  if (changed_ && has_context(former_)) (void)cudaSetDevice(former_);
}

}  // namespace axon::cuda
