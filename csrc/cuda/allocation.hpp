// What the driver knows about device memory that others have allocated, and how it is given to other processes.
//
//   Result<Allocation> found = allocation_at(address);   // of torch's allocator, say
//   Result<FileDescriptor> shared = share(found.value());         // SharedRun maps it elsewhere
//   Result<LegacyHandle> handle = legacy_handle_of(found.value());   // LegacyMemory does
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::cuda {

// One cudaMalloc, or one mapping of memory that cuMemCreate made.
struct Allocation {
  uint64_t id = 0;    // of no other one of this process, before or after; 0: nothing is allocated there
  uint64_t base = 0;  // its first address
  uint64_t num_bytes = 0;
  int device = -1;
  bool has_descriptors = false;    // made to be shared by file descriptors
  bool has_legacy_handle = false;  // says the driver; of expandable segments wrongly
};

Result<Allocation> allocation_at(uint64_t address);

// Keeps the memory, whatever becomes of the allocation.
Result<FileDescriptor> share(const Allocation& allocation);

using LegacyHandle = std::array<std::byte, 64>;
Result<LegacyHandle> legacy_handle_of(const Allocation& allocation);

// What another process allocated by cudaMalloc.
class LegacyMemory {
 public:
  // For kernels of `device`. Fails while an allocation that was freed since is still mapped where this one lies.
  static Result<LegacyMemory> open(int device, const LegacyHandle& handle);
  LegacyMemory(LegacyMemory&& other) noexcept;
  LegacyMemory& operator=(LegacyMemory&& other) noexcept;
  // Waits for all kernels of the device, whosever they are; meanwhile nobody launches there (measured:
  // cudaIpcCloseMemHandle beside a spinning kernel).
  ~LegacyMemory();

  std::byte* data() const noexcept { return data_; }

 private:
  LegacyMemory(int device, std::byte* data) noexcept : device_(device), data_(data) {}

  int device_;
  std::byte* data_;  // null: moved away
};

}  // namespace axon::cuda
