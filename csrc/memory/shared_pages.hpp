// Host memory that processes of one user map. One makes it. The others map it through the maker's descriptor, which
// they open by its number under /proc, or have fetched.
//
//   Result<SharedPages> mine = SharedPages::make(num_bytes);                     // zero-initialised
//   Result<SharedPages> theirs = SharedPages::open(pid, descriptor, num_bytes);
//   Result<SharedPages> theirs = SharedPages::map(std::move(fetched), num_bytes);
//
// It has no name, so a killed process leaves nothing. It lives until the last mapping is gone. Its length is sealed: no
// process can make another one fault by shortening it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon {

class SharedPages {
 public:
  // Allocates the memory, not only its addresses. The name is for /proc.
  static Result<SharedPages> make(size_t num_bytes, const char* name = "axon");
  // Allocates each page when a process first uses it. Fails if the machine has not so much memory in all.
  static Result<SharedPages> make_on_use(size_t num_bytes, const char* name);
  // Fails unless make() made it, with this length, in a process that this one may inspect.
  static Result<SharedPages> open(int32_t pid, int descriptor, size_t num_bytes);
  // Fails unless make() made the memory of this descriptor, with this length. Closes the descriptor.
  static Result<SharedPages> map(FileDescriptor fetched, size_t num_bytes);

  SharedPages(SharedPages&& other) noexcept
      : descriptor_(std::move(other.descriptor_)),
        data_(std::exchange(other.data_, nullptr)),
        num_bytes_(other.num_bytes_) {}
  SharedPages& operator=(SharedPages&&) = delete;
  ~SharedPages();

  std::byte* data() const noexcept { return data_; }
  // The descriptor by which other processes open it; valid until close().
  int descriptor() const noexcept { return descriptor_.get(); }
  void close() noexcept { descriptor_ = FileDescriptor(); }
  // From here on forked children get no copy of the descriptor. They inherit the mapping.
  void withhold_from_forks() { descriptor_.withhold_from_forks(); }

 private:
  SharedPages(FileDescriptor descriptor, std::byte* data, size_t num_bytes) noexcept
      : descriptor_(std::move(descriptor)), data_(data), num_bytes_(num_bytes) {}
  static Result<SharedPages> seal(FileDescriptor file, size_t num_bytes);
  static Result<SharedPages> map_unchecked(FileDescriptor descriptor, size_t num_bytes);

  FileDescriptor descriptor_;
  std::byte* data_;
  size_t num_bytes_;
};

}  // namespace axon
