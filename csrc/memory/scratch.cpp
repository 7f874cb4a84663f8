#include "memory/scratch.hpp"

#include <algorithm>
#include <bit>
#include <new>

namespace axon {

static constexpr std::align_val_t kPage{4096};

Buffer ScratchPool::take(size_t num_bytes) {
  const size_t rounded = std::bit_ceil(std::max<size_t>(num_bytes, 4096));
  std::vector<std::byte*>& kept = free_[rounded];
  if (kept.empty()) return {static_cast<std::byte*>(::operator new(rounded, kPage)), rounded};
  std::byte* data = kept.back();
  kept.pop_back();
  num_bytes_kept_ -= rounded;
  return {data, rounded};
}

void ScratchPool::give_back(Buffer buffer) noexcept {
  if (num_bytes_kept_ + buffer.num_bytes > kMostKept) {
    ::operator delete(buffer.data, kPage);
    return;
  }
  free_[buffer.num_bytes].push_back(buffer.data);
  num_bytes_kept_ += buffer.num_bytes;
}

ScratchPool::~ScratchPool() {
  for (std::byte* data : given_up_) ::operator delete(data, kPage);
  for (auto& [num_bytes, buffers] : free_) {
    for (std::byte* data : buffers) ::operator delete(data, kPage);
  }
}

}  // namespace axon
