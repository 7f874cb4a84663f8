// operator new of the test binary that includes this, in one of its files, and says there what an allocation is to do:
//
//   void axon::on_allocation() noexcept { … }
//
// Not inlined: where only the one is, g++ takes free() for the end of what another new has begun.
#pragma once

#include <cstdlib>
#include <new>

namespace axon {
void on_allocation() noexcept;
}  // namespace axon

[[gnu::noinline]] void* operator new(size_t num_bytes) {
  axon::on_allocation();
  if (void* memory = std::malloc(num_bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t num_bytes, std::align_val_t alignment) {
  axon::on_allocation();
  const auto align = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (num_bytes + align - 1) / align * align)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
