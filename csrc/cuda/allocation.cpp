#include "cuda/allocation.hpp"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "cuda/error.hpp"

namespace axon::cuda {

Result<Allocation> allocation_at(uint64_t address) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  // The driver writes as many bytes as an attribute's type has. They are zeros or the default if there is no
  // allocation.
  uint64_t id = 0, handle_types = 0;
  uint64_t is_legacy = 0;
  int device = -1;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&id, &handle_types, &is_legacy, &device};
  AXON_DRIVER_TRY(driver.value(), pointer_get_attributes(std::size(values), attributes, values, address));
  if (id == 0) return Allocation{};
  // The range of one mapping. The attributes RANGE_START_ADDR and RANGE_SIZE describe all contiguous mappings together.
  CUdeviceptr base = 0;
  size_t num_bytes = 0;
  AXON_DRIVER_TRY(driver.value(), mem_get_address_range(&base, &num_bytes, address));
  return Allocation{.id = id,
                    .base = base,
                    .num_bytes = num_bytes,
                    .device = device,
                    .has_descriptors = (handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0,
                    .has_legacy_handle = is_legacy != 0};
}

Result<FileDescriptor> share(const Allocation& allocation) {
  Result<const CudaDriver*> loaded = load_driver();
  if (!loaded.ok()) return std::move(loaded.status());
  const CudaDriver* driver = loaded.value();
  CUmemGenericAllocationHandle handle = 0;
  AXON_DRIVER_TRY(driver, mem_retain_allocation_handle(&handle, reinterpret_cast<void*>(allocation.base)));
  int descriptor = -1;
  const CUresult error =
      driver->mem_export_to_shareable_handle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  (void)driver->mem_release(handle);
  if (error != CUDA_SUCCESS) return driver_failure(*driver, error, "mem_export_to_shareable_handle");
  return FileDescriptor(descriptor);
}

Result<LegacyHandle> legacy_handle_of(const Allocation& allocation) {
  cudaIpcMemHandle_t handle{};
  AXON_CUDA_TRY(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(allocation.base)));
  LegacyHandle bytes{};
  static_assert(sizeof handle == sizeof bytes);
  std::memcpy(bytes.data(), &handle, sizeof handle);
  return bytes;
}

Result<LegacyMemory> LegacyMemory::open(int device, const LegacyHandle& handle) {
  const DeviceGuard guard(device);
  cudaIpcMemHandle_t opened{};
  std::memcpy(&opened, handle.data(), sizeof opened);
  void* data = nullptr;
  AXON_CUDA_TRY(cudaIpcOpenMemHandle(&data, opened, cudaIpcMemLazyEnablePeerAccess));
  return LegacyMemory(device, static_cast<std::byte*>(data));
}

LegacyMemory::LegacyMemory(LegacyMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}

LegacyMemory& LegacyMemory::operator=(LegacyMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  return *this;
}

LegacyMemory::~LegacyMemory() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaIpcCloseMemHandle(data_);
}

}  // namespace axon::cuda
