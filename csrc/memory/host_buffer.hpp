// Page-aligned host memory for unexpected data. Any thread may release a buffer at any time: buffers outlive the engine
// and the thread that took them.
//
//   HostBuffer buffer = HostBuffer::take(num_bytes);   // empty if no memory is left
//
// Released buffers are kept for reuse, up to kMostKept: the first touch of a fresh page costs more than the copy into
// it.
#pragma once

#include <cstddef>
#include <utility>

namespace axon {

/// Page-aligned memory of the host, which it owns. It can be moved, not copied.
class HostBuffer {
 public:
  /// Bytes of released buffers that the process keeps for reuse.
  static constexpr size_t kMostKept = size_t{512} << 20;

  /// Takes memory, whose content is undefined. Any thread.
  /// @param num_bytes how many bytes are needed
  /// @return the memory; empty if there is none left
  static HostBuffer take(size_t num_bytes) noexcept;

  HostBuffer() noexcept = default;
  HostBuffer(HostBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~HostBuffer();

  /// @return the first byte, valid as long as this buffer; null if it is empty
  std::byte* data() const noexcept { return data_; }
  /// @return whether it has memory
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  HostBuffer(std::byte* data, size_t num_bytes) noexcept : data_(data), num_bytes_(num_bytes) {}

  std::byte* data_ = nullptr;
  size_t num_bytes_ = 0;  // the allocated size: a power of two
};

}  // namespace axon
