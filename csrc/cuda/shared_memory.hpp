// Device memory that several processes map: made by one, which exports a file descriptor, imported by the others.
//
//   Result<SharedMemory> mine = SharedMemory::allocate(device, num_bytes);   Result<FileDescriptor> fd = mine->share();
//   Result<SharedMemory> theirs = SharedMemory::import(device, fd_of_the_peer, num_bytes);
//
// The physical memory lives until the last owner and descriptor are gone, so an import survives its maker's end.
// Unmapping does not wait for the device: destroy an owner only when no kernel uses its addresses any more.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::cuda {

class SharedMemory {
 public:
  // On `device`, for kernels of that device; rounded up to what the driver maps at least. The content is undefined.
  static Result<SharedMemory> allocate(int device, size_t num_bytes);
  // `num_bytes` as the maker's num_bytes(); for kernels of `device`, which needs peer access to where the memory is.
  static Result<SharedMemory> import(int device, const FileDescriptor& shared, size_t num_bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }
  size_t num_bytes() const noexcept { return num_bytes_; }

  Result<FileDescriptor> share() const;
  // Kernels of this device may use it, too. Fine to repeat.
  Status grant(int device) const;

 private:
  SharedMemory() = default;
  Status map(int device, size_t num_bytes);

  CUmemGenericAllocationHandle handle_ = 0;  // 0: none
  CUdeviceptr address_ = 0;                  // 0: not reserved
  bool mapped_ = false;
  size_t num_bytes_ = 0;
};

// Several imported pieces, side by side as their owner has them.
//
//   Result<SharedRun> run = SharedRun::reserve(num_bytes);
//   AXON_TRY(run.value().append(fd, num_bytes_of_piece)); …       // from its begin to its end
//   AXON_TRY(run.value().grant(device));
class SharedRun {
 public:
  static Result<SharedRun> reserve(size_t num_bytes);
  SharedRun(SharedRun&& other) noexcept;
  SharedRun& operator=(SharedRun&& other) noexcept;
  ~SharedRun();

  // Whole: of the size that its owner has mapped.
  Status append(const FileDescriptor& shared, size_t num_bytes);
  // For kernels of this device, once all is appended.
  Status grant(int device) const;

  std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }

 private:
  SharedRun(CUdeviceptr address, size_t num_bytes) noexcept : address_(address), num_bytes_(num_bytes) {}

  CUdeviceptr address_;  // 0: moved away
  size_t num_bytes_;
  size_t num_mapped_ = 0;
  std::vector<size_t> pieces_;  // bytes
};

}  // namespace axon::cuda
