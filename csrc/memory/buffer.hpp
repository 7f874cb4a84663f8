// Borrowed memory: where a transfer reads or writes. Never owns; whoever posts keeps the memory alive until the engine
// has let go of it.
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
