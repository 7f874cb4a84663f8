#include "ipc/registrations/registration_tables.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/error.hpp"
#include "cuda/memory.hpp"

namespace axon {

static constexpr size_t kTableBytes = kSegmentSlots * sizeof(SegmentEntry);
static constexpr size_t kMostTables = 128;  // 2 MiB, the least that the driver maps

SegmentTables::SegmentTables(SharedMemory memory, Stream stream) noexcept
    : memory_(std::move(memory)), stream_(std::move(stream)) {}

Result<std::unique_ptr<SegmentTables>> SegmentTables::create(int device) {
  Result<SharedMemory> memory = SharedMemory::allocate(device, kMostTables * kTableBytes);
  if (!memory.ok()) return std::move(memory.status());
  Result<Stream> stream = Stream::create();
  if (!stream.ok()) return std::move(stream.status());
  std::unique_ptr<SegmentTables> tables(new SegmentTables(std::move(memory).value(), std::move(stream).value()));
  AXON_CUDA_TRY(cudaMemsetAsync(tables->entries(), 0, kMostTables * kTableBytes, tables->stream_.view().get()));
  AXON_TRY(tables->stream_.view().synchronize());
  return tables;
}

std::optional<SegmentEntry*> SegmentTables::take() noexcept {
  if (!free_.empty()) {
    SegmentEntry* const table = free_.back();
    free_.pop_back();
    return table;
  }
  if (num_used_ == kMostTables) return std::nullopt;
  return entries() + kSegmentSlots * num_used_++;
}

Status SegmentTables::clear(SegmentEntry* table) {
  AXON_CUDA_TRY(cudaMemsetAsync(table, 0, kTableBytes, stream_.view().get()));
  return stream_.view().synchronize();
}

// Copies of one stream follow each other. Eight aligned bytes arrive as one.
Status SegmentTables::enter(SegmentEntry* table, uint32_t number, std::span<std::byte> memory) {
  SegmentEntry* const entry = table + number % kSegmentSlots;
  const SegmentEntry content{.segment = number, .base = memory.data()};
  AXON_TRY(copy_async(&entry->base, &content.base, sizeof content.base, stream_));
  AXON_TRY(copy_async(&entry->segment, &content.segment, sizeof content.segment, stream_));
  AXON_TRY(stream_.view().synchronize());
  const std::lock_guard lock(mutex_);
  entered_[{table, number}] = memory;
  return Status();
}

Status SegmentTables::remove(SegmentEntry* table, uint32_t number) {
  static constexpr uint64_t kNone = 0;
  {
    const std::lock_guard lock(mutex_);
    entered_.erase({table, number});
  }
  AXON_TRY(copy_async(&table[number % kSegmentSlots].segment, &kNone, sizeof kNone, stream_));
  return stream_.view().synchronize();
}

std::span<std::byte> SegmentTables::find(const SegmentEntry* table, uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = entered_.find({table, number});
  return found == entered_.end() ? std::span<std::byte>() : found->second;
}

}  // namespace axon
