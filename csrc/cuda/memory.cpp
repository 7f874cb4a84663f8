#include "cuda/memory.hpp"

#include <cuda_runtime_api.h>

#include <cstring>

#include "cuda/error.hpp"

namespace axon::cuda {

void DeviceMemoryDeleter::operator()(std::byte* data) const noexcept {
  (void)cudaFree(data);
}
void PinnedMemoryDeleter::operator()(std::byte* data) const noexcept {
  (void)cudaFreeHost(data);
}
void Unregisterer::operator()(std::byte* data) const noexcept {
  (void)cudaHostUnregister(data);
}

Result<DeviceMemory> DeviceMemory::allocate(size_t num_bytes) {
  void* data = nullptr;
  AXON_CUDA_TRY(cudaMalloc(&data, num_bytes));
  DeviceMemory memory(static_cast<std::byte*>(data));
  AXON_CUDA_TRY(cudaMemset(data, 0, num_bytes));
  // The memset runs on the legacy stream, for which work on a non-blocking stream would not wait.
  AXON_CUDA_TRY(cudaStreamSynchronize(nullptr));
  return memory;
}

Result<PinnedMemory> PinnedMemory::allocate(size_t num_bytes) {
  void* data = nullptr;
  AXON_CUDA_TRY(cudaHostAlloc(&data, num_bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  std::memset(data, 0, num_bytes);
  return PinnedMemory(static_cast<std::byte*>(data));
}

Result<RegisteredMemory> RegisteredMemory::open(std::byte* memory, size_t num_bytes) {
  AXON_CUDA_TRY(cudaHostRegister(memory, num_bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
  RegisteredMemory registered(memory);
  void* data = nullptr;
  AXON_CUDA_TRY(cudaHostGetDevicePointer(&data, memory, 0));
  registered.data_ = static_cast<std::byte*>(data);
  return registered;
}

void StreamMemory::Deleter::operator()(std::byte* data) const noexcept {
  (void)cudaFreeAsync(data, stream.get());
}

Result<StreamMemory> StreamMemory::allocate(size_t num_bytes, StreamView stream) {
  void* data = nullptr;
  AXON_CUDA_TRY(cudaMallocAsync(&data, num_bytes, stream.get()));
  return StreamMemory(static_cast<std::byte*>(data), stream);
}

Status copy_async(void* target, const void* source, size_t num_bytes, StreamView stream) {
  if (num_bytes == 0) return Status();
  AXON_CUDA_TRY(cudaMemcpyAsync(target, source, num_bytes, cudaMemcpyDefault, stream.get()));
  return Status();
}

}  // namespace axon::cuda
