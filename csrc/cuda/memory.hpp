// Memory that kernels use: on the current device, or pinned on the host and mapped into every device.
//
// Owners free, or unregister, by calls that wait for the device: release them only when no kernel can still spin.
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
  // On the current device, all bytes 0.
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

// Memory of the host that somebody else has mapped, as the device that was current sees it. Goes before the mapping.
class RegisteredMemory {
 public:
  static Result<RegisteredMemory> open(std::byte* memory, size_t num_bytes);
  std::byte* data() const noexcept { return data_; }

 private:
  explicit RegisteredMemory(std::byte* memory) noexcept : memory_(memory) {}
  std::unique_ptr<std::byte, Unregisterer> memory_;  // the host's address
  std::byte* data_ = nullptr;
};

// Scratch for one operation: taken and given back in the order of the stream, in a capture too.
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

// Between any two of host and devices, in the order of the stream. Of host memory only pinned one does not block.
Status copy_async(void* target, const void* source, size_t num_bytes, StreamView stream);

}  // namespace axon::cuda
