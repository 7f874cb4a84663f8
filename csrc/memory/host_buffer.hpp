// Host memory for what comes unasked: page-aligned buffers, which any thread may give back, whenever: they outlive the
// engine and whoever took them.
//
//   HostBuffer buffer = HostBuffer::take(num_bytes);       // empty if there is no memory for it
//
// What is given back is kept for the next one, up to kMostKept: the first touch of a fresh page costs more than the
// copy into it.
#pragma once

#include <cstddef>
#include <utility>

namespace axon {

class HostBuffer {
 public:
  static constexpr size_t kMostKept = size_t{512} << 20;

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

  std::byte* data() const noexcept { return data_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  HostBuffer(std::byte* data, size_t num_bytes) noexcept : data_(data), num_bytes_(num_bytes) {}

  std::byte* data_ = nullptr;
  size_t num_bytes_ = 0;  // as it was allocated: a power of two
};

}  // namespace axon
