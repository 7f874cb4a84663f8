// The tables in device memory where kernels of one device look up peers' registrations, one table per peer process.
//
// Kernels read while entries are written. An entry's address is written before its number, and only the number says
// whether the entry is valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/shared_memory.hpp"
#include "cuda/stream.hpp"

namespace axon::ipc {

// The memory is never freed. Its device must be current in each call except find(). One thread at a time takes or gives
// back tables, and one thread writes them.
class RegistrationTables {
 public:
  static Result<std::unique_ptr<RegistrationTables>> create(int device);

  // A permanent table without entries.
  const cuda::RegistrationEntry* empty() const noexcept { return entries(); }
  // Returns nullopt when all tables are taken, which takes more peers than any supported host has.
  std::optional<cuda::RegistrationEntry*> take() noexcept;
  // No kernel may use the table any more, and it must be cleared.
  void give_back(cuda::RegistrationEntry* table) noexcept { free_.push_back(table); }

  // When these return, kernels that start later see the change.
  Status clear(cuda::RegistrationEntry* table);
  Status enter(cuda::RegistrationEntry* table, uint32_t number, std::span<std::byte> memory);
  Status remove(cuda::RegistrationEntry* table, uint32_t number);

  // Returns what a kernel that starts now would find, or an empty span. Any thread may call this.
  std::span<std::byte> find(const cuda::RegistrationEntry* table, uint32_t number) const;

 private:
  RegistrationTables(cuda::SharedMemory memory, cuda::Stream stream) noexcept;
  cuda::RegistrationEntry* entries() const noexcept {
    return reinterpret_cast<cuda::RegistrationEntry*>(memory_.data());
  }

  const cuda::SharedMemory memory_;
  const cuda::Stream stream_;
  size_t num_used_ = 1;  // includes the empty table
  std::vector<cuda::RegistrationEntry*> free_;

  mutable std::mutex mutex_;  // guards the members below
  std::map<std::pair<const cuda::RegistrationEntry*, uint32_t>, std::span<std::byte>> entered_;  // by table and number
};

}  // namespace axon::ipc
