// Mappable memory of another process of this host, mapped here.
//
//   Result<std::shared_ptr<MappedMemory>> mapped = MappedMemory::open(pid, location);
//   if (mapped.value()->contains(address, num_bytes)) use(address + mapped.value()->shift());
//
// All users of a file share its mapping.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.hpp"
#include "memory/mappable_memory.hpp"
#include "memory/shared_pages.hpp"

namespace axon {

class MappedMemory {
 public:
  // Any thread. Fails unless the memory is that of `location`, in a process that this one may inspect.
  static Result<std::shared_ptr<MappedMemory>> open(int32_t pid, const MappableMemory::Location& location);

  // For open().
  MappedMemory(SharedPages pages, int32_t pid, const MappableMemory::Location& location) noexcept
      : pages_(std::move(pages)), pid_(pid), location_(location) {}
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  // The address is that of the owner.
  bool contains(uint64_t address, uint64_t num_bytes) const noexcept;
  // Returns null if there is no flag of this number.
  const std::atomic<uint64_t>* flag(uint32_t number) const noexcept;
  // The address of a byte here minus its address at the owner, modulo 2^64.
  uint64_t shift() const noexcept { return reinterpret_cast<uint64_t>(pages_.data()) - location_.address; }

 private:
  const SharedPages pages_;
  const int32_t pid_;
  const MappableMemory::Location location_;
};

}  // namespace axon
