#include "cuda/memops.hpp"

#include <utility>

#include "cuda/driver.hpp"

namespace axon {

static CUdeviceptr address_of(const std::atomic<uint32_t>* word) noexcept {
  static_assert(sizeof *word == sizeof(uint32_t));
  return reinterpret_cast<CUdeviceptr>(word);
}

Status write_word(StreamView stream, std::atomic<uint32_t>* word, uint32_t value) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  AXON_DRIVER_TRY(driver.value(),
                  stream_write_value(stream.get(), address_of(word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
  return Status();
}

Status wait_for_word(StreamView stream, const std::atomic<uint32_t>* word, uint32_t value) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  AXON_DRIVER_TRY(driver.value(), stream_wait_value(stream.get(), address_of(word), value, CU_STREAM_WAIT_VALUE_GEQ));
  return Status();
}

}  // namespace axon
