#include "ipc/registrations/granules.hpp"

#include <utility>

#include "cuda/driver.hpp"
#include "kernels/device_ranks.hpp"

namespace axon::testing {

static const cuda::CudaDriver& driver() {
  return *require(cuda::load_driver());
}

static void require(CUresult error) {
  if (error != CUDA_SUCCESS) require(driver_failure(driver(), error, "granules"));
}

Granules::Granules(int device, size_t count) : device_(device), handles_(count) {
  require(driver().mem_address_reserve(&base_, count * kBytes, 0, 0, 0));
  for (size_t i = 0; i < count; ++i) map(i);
}

Granules::~Granules() {
  for (size_t i = 0; i < handles_.size(); ++i) unmap(i);
  (void)driver().mem_address_free(base_, handles_.size() * kBytes);
}

void Granules::map(size_t index) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
  require(driver().mem_create(&handles_[index], kBytes, &properties, 0));
  require(driver().mem_map(address_of(index), kBytes, 0, handles_[index], 0));
  const CUmemAccessDesc access{.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  require(driver().mem_set_access(address_of(index), kBytes, &access, 1));
}

void Granules::unmap(size_t index) {
  if (handles_[index] == 0) return;
  (void)driver().mem_unmap(address_of(index), kBytes);
  (void)driver().mem_release(std::exchange(handles_[index], 0));
}

}  // namespace axon::testing
