#include "cuda/memops.hpp"

#include <utility>
#include <vector>

#include "cuda/driver.hpp"

namespace axon::cuda {

static CUdeviceptr address_of(const std::atomic<uint32_t>* flag) noexcept {
  static_assert(sizeof *flag == sizeof(uint32_t));
  return reinterpret_cast<CUdeviceptr>(flag);
}

Status write_flag(StreamView stream, std::atomic<uint32_t>* flag, uint32_t value) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  AXON_DRIVER_TRY(driver.value(),
                  stream_write_value(stream.get(), address_of(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT));
  return Status();
}

Status wait_for_flag(StreamView stream, const std::atomic<uint32_t>* flag, uint32_t value) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  AXON_DRIVER_TRY(driver.value(), stream_wait_value(stream.get(), address_of(flag), value, CU_STREAM_WAIT_VALUE_GEQ));
  return Status();
}

Status set_flag(StreamView stream, uint32_t* flag) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  AXON_DRIVER_TRY(driver.value(), stream_write_value(stream.get(), reinterpret_cast<CUdeviceptr>(flag), 1,
                                                     CU_STREAM_WRITE_VALUE_DEFAULT));
  return Status();
}

Status take_flags(StreamView stream, std::span<uint32_t* const> flags) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  std::vector<CUstreamBatchMemOpParams> calls(2 * flags.size());
  for (size_t i = 0; i < flags.size(); ++i) {
    const auto address = reinterpret_cast<CUdeviceptr>(flags[i]);
    auto& wait = calls[i].waitValue;
    wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.address = address;
    wait.value = 1;
    wait.flags = CU_STREAM_WAIT_VALUE_GEQ;
    auto& reset = calls[flags.size() + i].writeValue;
    reset.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    reset.address = address;
    reset.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  }
  AXON_DRIVER_TRY(driver.value(),
                  stream_batch_mem_op(stream.get(), static_cast<unsigned>(calls.size()), calls.data(), 0));
  return Status();
}

}  // namespace axon::cuda
