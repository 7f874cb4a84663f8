#include "cuda/memops.hpp"

#include <utility>
#include <vector>

#include "cuda/driver.hpp"

namespace axon::cuda {

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

Status set_word(StreamView stream, uint32_t* word) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  AXON_DRIVER_TRY(driver.value(), stream_write_value(stream.get(), reinterpret_cast<CUdeviceptr>(word), 1,
                                                     CU_STREAM_WRITE_VALUE_DEFAULT));
  return Status();
}

Status take_words(StreamView stream, std::span<uint32_t* const> words) {
  Result<const CudaDriver*> driver = load_driver();
  if (!driver.ok()) return std::move(driver.status());
  std::vector<CUstreamBatchMemOpParams> calls(2 * words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    const auto address = reinterpret_cast<CUdeviceptr>(words[i]);
    auto& wait = calls[i].waitValue;
    wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.address = address;
    wait.value = 1;
    wait.flags = CU_STREAM_WAIT_VALUE_GEQ;
    auto& reset = calls[words.size() + i].writeValue;
    reset.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    reset.address = address;
    reset.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  }
  AXON_DRIVER_TRY(driver.value(),
                  stream_batch_mem_op(stream.get(), static_cast<unsigned>(calls.size()), calls.data(), 0));
  return Status();
}

}  // namespace axon::cuda
