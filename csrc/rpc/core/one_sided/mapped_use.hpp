// A use of mapped memory of a peer by code that reads and writes it without transfers. The peer's region stays held
// until the use has ended.
//
//   Result<MappedUse> use = MappedUse::begin(remote, offset, num_bytes);
//   std::byte* bytes = use.value().data();
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rpc/core/one_sided/remote_memory.hpp"

namespace axon::rpc {

class MappedUse {
 public:
  // Any thread. Fails if the memory is not mapped, its region is closed, or the range is not within one extent.
  static Result<MappedUse> begin(std::shared_ptr<RemoteMemory> memory, uint64_t offset, uint64_t num_bytes);

  MappedUse(MappedUse&& other) noexcept = default;
  MappedUse& operator=(MappedUse&&) = delete;
  ~MappedUse();

  std::byte* data() const noexcept { return data_; }

 private:
  MappedUse(std::shared_ptr<RemoteMemory> memory, std::byte* data) noexcept : memory_(std::move(memory)), data_(data) {}

  std::shared_ptr<RemoteMemory> memory_;  // shared with transfers and slices; null once this has been moved from
  std::byte* data_;
};

}  // namespace axon::rpc
