#include "cuda/shared_memory.hpp"

#include <utility>

#include "cuda/device.hpp"
#include "cuda/driver.hpp"

namespace axon::cuda {

static CUmemAccessDesc access_from(int device) noexcept {
  return {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

static Result<CUmemGenericAllocationHandle> import_handle(const CudaDriver* driver, const FileDescriptor& shared) {
  CUmemGenericAllocationHandle handle = 0;
  void* descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(shared.get()));
  AXON_DRIVER_TRY(driver,
                  mem_import_from_shareable_handle(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
}

static CUmemAllocationProp properties_on(int device) noexcept {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return properties;
}

Result<SharedMemory> SharedMemory::allocate(int device, size_t num_bytes) {
  Result<const CudaDriver*> loaded = load_driver();
  if (!loaded.ok()) return std::move(loaded.status());
  const CudaDriver* driver = loaded.value();
  const DeviceGuard guard(device);
  const CUmemAllocationProp properties = properties_on(device);
  size_t granularity = 0;
  AXON_DRIVER_TRY(driver, mem_get_allocation_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const size_t num_mapped = (num_bytes + granularity - 1) / granularity * granularity;
  SharedMemory memory;
  AXON_DRIVER_TRY(driver, mem_create(&memory.handle_, num_mapped, &properties, 0));
  AXON_TRY(memory.map(device, num_mapped));
  return memory;
}

Result<SharedMemory> SharedMemory::import(int device, const FileDescriptor& shared, size_t num_bytes) {
  Result<const CudaDriver*> loaded = load_driver();
  if (!loaded.ok()) return std::move(loaded.status());
  const CudaDriver* driver = loaded.value();
  const DeviceGuard guard(device);
  Result<CUmemGenericAllocationHandle> handle = import_handle(driver, shared);
  if (!handle.ok()) return std::move(handle.status());
  SharedMemory memory;
  memory.handle_ = handle.value();
  AXON_TRY(memory.map(device, num_bytes));
  return memory;
}

Status SharedMemory::map(int device, size_t num_bytes) {
  const CudaDriver* driver = load_driver().value();
  num_bytes_ = num_bytes;
  AXON_DRIVER_TRY(driver, mem_address_reserve(&address_, num_bytes, 0, 0, 0));
  AXON_DRIVER_TRY(driver, mem_map(address_, num_bytes, 0, handle_, 0));
  mapped_ = true;
  return grant(device);
}

Status SharedMemory::grant(int device) const {
  const DeviceGuard guard(device);
  const CudaDriver* driver = load_driver().value();
  const CUmemAccessDesc access = access_from(device);
  AXON_DRIVER_TRY(driver, mem_set_access(address_, num_bytes_, &access, 1));
  return Status();
}

Result<FileDescriptor> SharedMemory::share() const {
  const CudaDriver* driver = load_driver().value();
  int descriptor = -1;
  AXON_DRIVER_TRY(driver,
                  mem_export_to_shareable_handle(&descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return FileDescriptor(descriptor);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : handle_(std::exchange(other.handle_, 0)),
      address_(std::exchange(other.address_, 0)),
      mapped_(std::exchange(other.mapped_, false)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(mapped_, other.mapped_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (handle_ == 0) return;
  const CudaDriver& driver = *load_driver().value();
  if (mapped_) (void)driver.mem_unmap(address_, num_bytes_);
  if (address_ != 0) (void)driver.mem_address_free(address_, num_bytes_);
  (void)driver.mem_release(handle_);
}

Result<SharedRun> SharedRun::reserve(size_t num_bytes) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  CUdeviceptr address = 0;
  AXON_DRIVER_TRY(driver.value(), mem_address_reserve(&address, num_bytes, 0, 0, 0));
  return SharedRun(address, num_bytes);
}

// The mapping keeps the memory alive, so the handle is released at once.
Status SharedRun::append(const FileDescriptor& shared, size_t num_bytes) {
  const CudaDriver* driver = load_driver().value();
  if (num_bytes > num_bytes_ - num_mapped_)
    return {ErrorCode::kInvalidArgument, "the extents of a run exceed its reserved size"};
  Result<CUmemGenericAllocationHandle> handle = import_handle(driver, shared);
  if (!handle.ok()) return std::move(handle.status());
  const CUresult error = driver->mem_map(address_ + num_mapped_, num_bytes, 0, handle.value(), 0);
  (void)driver->mem_release(handle.value());
  if (error != CUDA_SUCCESS) return driver_failure(*driver, error, "mem_map");
  pieces_.push_back(num_bytes);
  num_mapped_ += num_bytes;
  return Status();
}

Status SharedRun::grant(int device) const {
  const DeviceGuard guard(device);
  const CudaDriver* driver = load_driver().value();
  const CUmemAccessDesc access = access_from(device);
  AXON_DRIVER_TRY(driver, mem_set_access(address_, num_mapped_, &access, 1));
  return Status();
}

SharedRun::SharedRun(SharedRun&& other) noexcept
    : address_(std::exchange(other.address_, 0)),
      num_bytes_(other.num_bytes_),
      num_mapped_(other.num_mapped_),
      pieces_(std::move(other.pieces_)) {}

SharedRun& SharedRun::operator=(SharedRun&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(num_mapped_, other.num_mapped_);
  std::swap(pieces_, other.pieces_);
  return *this;
}

SharedRun::~SharedRun() {
  if (address_ == 0) return;
  const CudaDriver& driver = *load_driver().value();
  CUdeviceptr begin = address_;
  for (const size_t num_bytes : pieces_) {
    (void)driver.mem_unmap(begin, num_bytes);
    begin += num_bytes;
  }
  (void)driver.mem_address_free(address_, num_bytes_);
}

}  // namespace axon::cuda
