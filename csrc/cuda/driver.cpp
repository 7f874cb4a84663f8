#include "cuda/driver.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/error.hpp"

namespace axon::cuda {

// A name refers to the function's version of this CUDA release. All functions that we use, and their structures, exist
// since 12.0.
static constexpr unsigned kVersion = 12000;

template <typename Function>
static Status find(const char* name, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess) return cuda_failure(error, "loading the CUDA driver");
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    return {ErrorCode::kInternal,
            std::string("the CUDA driver has no ") + name + ": install a driver for CUDA 12.0 or later"};
  }
  function = reinterpret_cast<Function>(address);
  return Status();
}

static Result<CudaDriver> find_all() {
  CudaDriver driver{};
  AXON_TRY(find("cuGetErrorString", driver.error_string));
  AXON_TRY(find("cuDevicePrimaryCtxGetState", driver.device_primary_ctx_get_state));
  AXON_TRY(find("cuPointerGetAttributes", driver.pointer_get_attributes));
  AXON_TRY(find("cuMemGetAllocationGranularity", driver.mem_get_allocation_granularity));
  AXON_TRY(find("cuMemCreate", driver.mem_create));
  AXON_TRY(find("cuMemRelease", driver.mem_release));
  AXON_TRY(find("cuMemRetainAllocationHandle", driver.mem_retain_allocation_handle));
  AXON_TRY(find("cuMemExportToShareableHandle", driver.mem_export_to_shareable_handle));
  AXON_TRY(find("cuMemImportFromShareableHandle", driver.mem_import_from_shareable_handle));
  AXON_TRY(find("cuMemGetAddressRange", driver.mem_get_address_range));
  AXON_TRY(find("cuMemAddressReserve", driver.mem_address_reserve));
  AXON_TRY(find("cuMemAddressFree", driver.mem_address_free));
  AXON_TRY(find("cuMemMap", driver.mem_map));
  AXON_TRY(find("cuMemUnmap", driver.mem_unmap));
  AXON_TRY(find("cuMemSetAccess", driver.mem_set_access));
  AXON_TRY(find("cuThreadExchangeStreamCaptureMode", driver.thread_exchange_stream_capture_mode));
  AXON_TRY(find("cuStreamWriteValue32", driver.stream_write_value));
  AXON_TRY(find("cuStreamWaitValue32", driver.stream_wait_value));
  AXON_TRY(find("cuStreamBatchMemOp", driver.stream_batch_mem_op));
  return driver;
}

Result<const CudaDriver*> load_driver() {
  static Result<CudaDriver> loaded = find_all();
  if (!loaded.ok()) return loaded.status().clone();
  return &std::as_const(loaded).value();
}

Status driver_failure(const CudaDriver& driver, CUresult error, const char* call) {
  const char* text = nullptr;
  if (driver.error_string(error, &text) != CUDA_SUCCESS) text = "unknown error";
  const ErrorCode code = error == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kResourceExhausted : ErrorCode::kInternal;
  return Status(code, "CUDA driver, " + std::string(call) + ": " + text + " (" + std::to_string(error) + ")");
}

}  // namespace axon::cuda
