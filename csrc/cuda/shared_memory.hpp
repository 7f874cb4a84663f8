// Device memory that several processes map. One process allocates it and exports a file descriptor; the others import
// it.
//
//   Result<SharedMemory> mine = SharedMemory::allocate(device, num_bytes);
//   Result<FileDescriptor> fd = mine.value().share();
//   Result<SharedMemory> theirs = SharedMemory::import(device, fd_of_the_peer, num_bytes);
//
// The physical memory lives until the last owner and descriptor are gone, so an import outlives the process that
// allocated it. Unmapping does not wait for the device: destroy an owner only when no kernel uses its addresses any
// more.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::cuda {

class SharedMemory {
 public:
  // Allocates on `device`, for kernels of that device. Rounds up to the driver's granularity. The content is undefined.
  static Result<SharedMemory> allocate(int device, size_t num_bytes);
  // `num_bytes` must equal num_bytes() of the allocating process. For kernels of `device`, which needs peer access to
  // the memory.
  static Result<SharedMemory> import(int device, const FileDescriptor& shared, size_t num_bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }
  size_t num_bytes() const noexcept { return num_bytes_; }

  Result<FileDescriptor> share() const;
  // Enables kernels of this device to use the memory, too. May be repeated.
  Status grant(int device) const;

 private:
  SharedMemory() = default;
  Status map(int device, size_t num_bytes);

  CUmemGenericAllocationHandle handle_ = 0;  // 0: none
  CUdeviceptr address_ = 0;                  // 0: not reserved
  bool mapped_ = false;
  size_t num_bytes_ = 0;
};

// Several imported extents, contiguous as in their owner's process.
//
//   Result<SharedRun> run = SharedRun::reserve(num_bytes);
//   AXON_TRY(run.value().append(fd, num_bytes_of_extent));   // repeated for each extent, in address order
//   AXON_TRY(run.value().grant(device));
class SharedRun {
 public:
  static Result<SharedRun> reserve(size_t num_bytes);
  SharedRun(SharedRun&& other) noexcept;
  SharedRun& operator=(SharedRun&& other) noexcept;
  ~SharedRun();

  // Appends a whole extent, with the size that its owner has mapped.
  Status append(const FileDescriptor& shared, size_t num_bytes);
  // Enables kernels of this device to use the memory, once all extents are appended.
  Status grant(int device) const;

  std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }

 private:
  SharedRun(CUdeviceptr address, size_t num_bytes) noexcept : address_(address), num_bytes_(num_bytes) {}

  CUdeviceptr address_;  // 0 after a move
  size_t num_bytes_;
  size_t num_mapped_ = 0;
  std::vector<size_t> pieces_;  // bytes
};

}  // namespace axon::cuda
