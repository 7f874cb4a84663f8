#include "ipc/registrations/registration_tables.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/error.hpp"
#include "cuda/memory.hpp"

namespace axon::ipc {

static constexpr size_t kTableBytes = cuda::kRegistrationSlots * sizeof(cuda::RegistrationEntry);
static constexpr size_t kMostTables = 128;  // 2 MiB, the driver's smallest mapping

RegistrationTables::RegistrationTables(cuda::SharedMemory memory, cuda::Stream stream) noexcept
    : memory_(std::move(memory)), stream_(std::move(stream)) {}

Result<std::unique_ptr<RegistrationTables>> RegistrationTables::create(int device) {
  Result<cuda::SharedMemory> memory = cuda::SharedMemory::allocate(device, kMostTables * kTableBytes);
  if (!memory.ok()) return std::move(memory.status());
  Result<cuda::Stream> stream = cuda::Stream::create();
  if (!stream.ok()) return std::move(stream.status());
  std::unique_ptr<RegistrationTables> tables(
      new RegistrationTables(std::move(memory).value(), std::move(stream).value()));
  AXON_CUDA_TRY(cudaMemsetAsync(tables->entries(), 0, kMostTables * kTableBytes, tables->stream_.view().get()));
  AXON_TRY(tables->stream_.view().synchronize());
  return tables;
}

std::optional<cuda::RegistrationEntry*> RegistrationTables::take() noexcept {
  if (!free_.empty()) {
    cuda::RegistrationEntry* const table = free_.back();
    free_.pop_back();
    return table;
  }
  if (num_used_ == kMostTables) return std::nullopt;
  return entries() + cuda::kRegistrationSlots * num_used_++;
}

Status RegistrationTables::clear(cuda::RegistrationEntry* table) {
  AXON_CUDA_TRY(cudaMemsetAsync(table, 0, kTableBytes, stream_.view().get()));
  return stream_.view().synchronize();
}

// Copies on one stream run in order. Eight aligned bytes arrive atomically.
Status RegistrationTables::enter(cuda::RegistrationEntry* table, uint32_t number, std::span<std::byte> memory) {
  cuda::RegistrationEntry* const entry = table + number % cuda::kRegistrationSlots;
  const cuda::RegistrationEntry content{.registration = number, .base = memory.data()};
  AXON_TRY(copy_async(&entry->base, &content.base, sizeof content.base, stream_));
  AXON_TRY(copy_async(&entry->registration, &content.registration, sizeof content.registration, stream_));
  AXON_TRY(stream_.view().synchronize());
  const std::lock_guard lock(mutex_);
  entered_[{table, number}] = memory;
  return Status();
}

Status RegistrationTables::remove(cuda::RegistrationEntry* table, uint32_t number) {
  static constexpr uint64_t kNone = 0;
  {
    const std::lock_guard lock(mutex_);
    entered_.erase({table, number});
  }
  AXON_TRY(copy_async(&table[number % cuda::kRegistrationSlots].registration, &kNone, sizeof kNone, stream_));
  return stream_.view().synchronize();
}

std::span<std::byte> RegistrationTables::find(const cuda::RegistrationEntry* table, uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = entered_.find({table, number});
  return found == entered_.end() ? std::span<std::byte>() : found->second;
}

}  // namespace axon::ipc
