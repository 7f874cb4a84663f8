// What the driver knows about device memory that other code has allocated, and how to share it with other processes.
//
//   Result<Allocation> found = allocation_at(address);               // memory of torch's allocator, for example
//   Result<FileDescriptor> shared = share(found.value());            // another process maps it by SharedRun
//   Result<LegacyHandle> handle = legacy_handle_of(found.value());   // another process maps it by LegacyMemory
//
// Thread-safe. An Allocation owns nothing; a LegacyMemory owns its mapping.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::cuda {

// One cudaMalloc, or one mapping of memory created by cuMemCreate.
struct Allocation {
  uint64_t id = 0;    // never used again in this process; 0: no allocation at this address
  uint64_t base = 0;  // its first address
  uint64_t num_bytes = 0;
  int device = -1;
  bool has_descriptors = false;    // created for sharing by file descriptors
  bool has_legacy_handle = false;  // as the driver says; wrong for expandable segments
};

Result<Allocation> allocation_at(uint64_t address);

// The descriptor keeps the memory, even after the allocation is freed.
Result<FileDescriptor> share(const Allocation& allocation);

using LegacyHandle = std::array<std::byte, 64>;
Result<LegacyHandle> legacy_handle_of(const Allocation& allocation);

// Memory that another process allocated by cudaMalloc.
class LegacyMemory {
 public:
  // Maps it for kernels of `device`. Fails while a freed allocation is still mapped at the same address.
  static Result<LegacyMemory> open(int device, const LegacyHandle& handle);
  LegacyMemory(LegacyMemory&& other) noexcept;
  LegacyMemory& operator=(LegacyMemory&& other) noexcept;
  // Waits for all kernels of the device, of whatever code. Meanwhile all launches on the device block (measured:
  // cudaIpcCloseMemHandle beside a spinning kernel).
  ~LegacyMemory();

  std::byte* data() const noexcept { return data_; }

 private:
  LegacyMemory(int device, std::byte* data) noexcept : device_(device), data_(data) {}

  int device_;
  std::byte* data_;  // null after a move
};

}  // namespace axon::cuda
