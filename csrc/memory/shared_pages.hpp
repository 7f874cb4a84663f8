// Host memory that two processes of one user map: made by one, opened by the other by way of the first one's
// descriptor.
//
//   Result<SharedPages> mine = SharedPages::make(num_bytes);               // all zeros
//   Result<SharedPages> theirs = SharedPages::open(pid, descriptor, num_bytes);
//
// It has no name, so nothing is left behind by whoever is killed, and lives until the last mapping is gone. Its length
// is sealed: no process can make another one fault by shortening it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon {

class SharedPages {
 public:
  // The memory is there, not only its addresses.
  static Result<SharedPages> make(size_t num_bytes);
  // Fails on anything but what make() made, of this length, by a process that this one may look into.
  static Result<SharedPages> open(int32_t pid, int descriptor, size_t num_bytes);

  SharedPages(SharedPages&& other) noexcept
      : descriptor_(std::move(other.descriptor_)),
        data_(std::exchange(other.data_, nullptr)),
        num_bytes_(other.num_bytes_) {}
  SharedPages& operator=(SharedPages&&) = delete;
  ~SharedPages();

  std::byte* data() const noexcept { return data_; }
  // What others open it by; until close().
  int descriptor() const noexcept { return descriptor_.get(); }
  void close() noexcept { descriptor_ = FileDescriptor(); }

 private:
  SharedPages(FileDescriptor descriptor, std::byte* data, size_t num_bytes) noexcept
      : descriptor_(std::move(descriptor)), data_(data), num_bytes_(num_bytes) {}
  static Result<SharedPages> map(FileDescriptor descriptor, size_t num_bytes);

  FileDescriptor descriptor_;
  std::byte* data_;
  size_t num_bytes_;
};

}  // namespace axon
