// Functions that only the driver offers: memory that other processes can map, and flags that streams write and wait
// for.
//
//   Result<const CudaDriver*> driver = load_driver();
//   AXON_DRIVER_TRY(driver.value(), mem_release(handle));   // in a function that returns Status or Result<T>
//
// The runtime, which opens the driver, looks the functions up. So nothing links libcuda, and load_driver() fails
// without a driver. Thread-safe.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "base/status.hpp"

namespace axon::cuda {

struct CudaDriver {
  PFN_cuGetErrorString_v6000 error_string;
  PFN_cuDevicePrimaryCtxGetState_v7000 device_primary_ctx_get_state;
  PFN_cuPointerGetAttributes_v7000 pointer_get_attributes;
  PFN_cuMemGetAllocationGranularity_v10020 mem_get_allocation_granularity;
  PFN_cuMemCreate_v10020 mem_create;
  PFN_cuMemRelease_v10020 mem_release;
  PFN_cuMemRetainAllocationHandle_v11000 mem_retain_allocation_handle;
  PFN_cuMemExportToShareableHandle_v10020 mem_export_to_shareable_handle;
  PFN_cuMemImportFromShareableHandle_v10020 mem_import_from_shareable_handle;
  PFN_cuMemGetAddressRange_v3020 mem_get_address_range;
  PFN_cuMemAddressReserve_v10020 mem_address_reserve;
  PFN_cuMemAddressFree_v10020 mem_address_free;
  PFN_cuMemMap_v10020 mem_map;
  PFN_cuMemUnmap_v10020 mem_unmap;
  PFN_cuMemSetAccess_v10020 mem_set_access;
  PFN_cuThreadExchangeStreamCaptureMode_v10010 thread_exchange_stream_capture_mode;
  PFN_cuStreamWriteValue32_v11070 stream_write_value;
  PFN_cuStreamWaitValue32_v11070 stream_wait_value;
  PFN_cuStreamBatchMemOp_v11070 stream_batch_mem_op;
};

// Loaded once, and valid for the life of the process.
Result<const CudaDriver*> load_driver();

Status driver_failure(const CudaDriver& driver, CUresult error, const char* call);

}  // namespace axon::cuda

#define AXON_DRIVER_TRY(driver, call)                                                   \
  do {                                                                                  \
    if (CUresult axon_driver_error = (driver)->call; axon_driver_error != CUDA_SUCCESS) \
      return ::axon::cuda::driver_failure(*(driver), axon_driver_error, #call);         \
  } while (false)
