#include "c10d/registered_memory.hpp"

#include <cuda_runtime_api.h>

#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/shared_memory.hpp"

namespace axon::c10d_backend {

bool has_registered_memory(c10::DeviceIndex device) noexcept {
  return device >= 0 && device < cuda::num_devices();
}

namespace {

// The memory of torch's pools. Never destroyed: the pools free memory until the very end.
struct Allocations {
  std::mutex mutex;
  std::map<void*, cuda::SharedMemory> by_address;
};

Allocations& allocations() {
  static auto* allocations = new Allocations;
  return *allocations;
}

void* allocate(size_t num_bytes, int device) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard on_device(device);
  Result<cuda::SharedMemory> memory = cuda::SharedMemory::allocate(device, num_bytes);
  if (!memory.ok()) {
    log::info("no registered memory on GPU " + std::to_string(device) + ": " + memory.status().message());
    return nullptr;  // torch frees its cached memory and asks again, then raises
  }
  void* const address = memory.value().data();
  const std::lock_guard lock(allocations().mutex);
  allocations().by_address.emplace(address, std::move(memory).value());
  return address;
}

// Unlike cudaFree, unmapping does not wait for kernels, but torch relies on such a wait. Where waiting is impossible
// (during a capture, or once CUDA has failed) the memory stays mapped.
void free(void* address, int device) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard on_device(device);
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
    (void)cudaGetLastError();  // later CUDA calls would report this error as theirs
    return log::info("registered memory on GPU " + std::to_string(device) +
                     " stays mapped: " + cudaGetErrorString(error));
  }
  std::unique_lock lock(allocations().mutex);
  const auto freed = allocations().by_address.extract(address);
  lock.unlock();
}

}  // namespace
}  // namespace axon::c10d_backend

// Has the signatures of torch.cuda.memory.CUDAPluggableAllocator.
extern "C" {

[[gnu::visibility("default")]] void* axon_allocate(size_t num_bytes, int device, cudaStream_t) noexcept try {
  return axon::c10d_backend::allocate(num_bytes, device);
} catch (const std::exception&) {
  return nullptr;
}

[[gnu::visibility("default")]] void axon_free(void* address, size_t, int device, cudaStream_t) noexcept {
  axon::c10d_backend::free(address, device);
}

}  // extern "C"
