// Borrowed memory that a transfer reads or writes. Does not own it: the poster keeps the memory alive until the engine
// has released it.
//
//   const Buffer buffer{.data = data, .num_bytes = num_bytes};
//   const Buffer half = buffer.slice(0, num_bytes / 2);
#pragma once

#include <cstddef>
#include <cstdint>

namespace axon {

enum class MemoryKind : uint8_t { kHost, kCuda };

struct ConstBuffer {
  const std::byte* data = nullptr;
  size_t num_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;

  ConstBuffer slice(size_t offset, size_t length) const noexcept { return {data + offset, length, kind}; }
};

struct Buffer {
  std::byte* data = nullptr;
  size_t num_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;

  Buffer slice(size_t offset, size_t length) const noexcept { return {data + offset, length, kind}; }
  operator ConstBuffer() const noexcept { return {data, num_bytes, kind}; }
};

}  // namespace axon
