// Memory used by kernels: on the current device, or pinned on the host and mapped into every device.
//
// Owners free or unregister the memory by calls that wait for the device. So destroy them only when no kernel can still
// spin.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::cuda {

struct DeviceMemoryDeleter {
  void operator()(std::byte* data) const noexcept;
};
struct PinnedMemoryDeleter {
  void operator()(std::byte* data) const noexcept;
};
struct Unregisterer {
  void operator()(std::byte* data) const noexcept;
};

class DeviceMemory {
 public:
  // Allocates zero-initialised memory on the current device.
  static Result<DeviceMemory> allocate(size_t num_bytes);
  std::byte* data() const noexcept { return data_.get(); }

 private:
  explicit DeviceMemory(std::byte* data) noexcept : data_(data) {}
  std::unique_ptr<std::byte, DeviceMemoryDeleter> data_;
};

// Host and devices use the same address (unified addressing, which every 64-bit Linux has).
class PinnedMemory {
 public:
  static Result<PinnedMemory> allocate(size_t num_bytes);
  std::byte* data() const noexcept { return data_.get(); }

 private:
  explicit PinnedMemory(std::byte* data) noexcept : data_(data) {}
  std::unique_ptr<std::byte, PinnedMemoryDeleter> data_;
};

// Host memory that other code has mapped, as seen by the device that was current. Destroy it before the mapping.
class RegisteredMemory {
 public:
  static Result<RegisteredMemory> open(std::byte* memory, size_t num_bytes);
  std::byte* data() const noexcept { return data_; }

 private:
  explicit RegisteredMemory(std::byte* memory) noexcept : memory_(memory) {}
  std::unique_ptr<std::byte, Unregisterer> memory_;  // the host's address
  std::byte* data_ = nullptr;
};

// Scratch memory for one operation, allocated and freed in stream order, also in a capture.
class StreamMemory {
 public:
  static Result<StreamMemory> allocate(size_t num_bytes, StreamView stream);
  std::byte* data() const noexcept { return data_.get(); }

 private:
  struct Deleter {
    StreamView stream;
    void operator()(std::byte* data) const noexcept;
  };
  StreamMemory(std::byte* data, StreamView stream) noexcept : data_(data, Deleter{stream}) {}
  std::unique_ptr<std::byte, Deleter> data_;
};

// Copies between any two of host and devices in stream order. Does not block if all host memory is pinned.
Status copy_async(void* target, const void* source, size_t num_bytes, StreamView stream);

}  // namespace axon::cuda
