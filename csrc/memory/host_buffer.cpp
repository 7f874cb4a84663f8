#include "memory/host_buffer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <mutex>
#include <new>
#include <vector>

#include "base/forks.hpp"

namespace axon {

static constexpr std::align_val_t kPage{4096};
static constexpr size_t kSmallest = 4096;
static constexpr size_t kLargest = size_t{1} << 47;  // the address space of a process

namespace {

struct Kept {
  std::mutex mutex;
  std::array<std::vector<std::byte*>, 48> by_size;  // index: log2 of the size
  size_t num_bytes = 0;
};

Kept& kept() {
  static OnePerProcess<Kept> kept;
  return kept.get();
}

}  // namespace

HostBuffer HostBuffer::take(size_t num_bytes) noexcept {
  if (num_bytes > kLargest) return {};
  const size_t rounded = std::bit_ceil(std::max(num_bytes, kSmallest));
  {
    Kept& free_buffers = kept();
    const std::lock_guard lock(free_buffers.mutex);
    std::vector<std::byte*>& free = free_buffers.by_size[static_cast<size_t>(std::countr_zero(rounded))];
    if (!free.empty()) {
      std::byte* data = free.back();
      free.pop_back();
      free_buffers.num_bytes -= rounded;
      return {data, rounded};
    }
  }
  auto* data = static_cast<std::byte*>(::operator new(rounded, kPage, std::nothrow));
  return data == nullptr ? HostBuffer() : HostBuffer(data, rounded);
}

HostBuffer::~HostBuffer() {
  if (data_ == nullptr) return;
  Kept& free_buffers = kept();
  {
    const std::lock_guard lock(free_buffers.mutex);
    if (free_buffers.num_bytes + num_bytes_ <= kMostKept) {
      free_buffers.by_size[static_cast<size_t>(std::countr_zero(num_bytes_))].push_back(data_);
      free_buffers.num_bytes += num_bytes_;
      return;
    }
  }
  ::operator delete(data_, kPage);
}

}  // namespace axon
