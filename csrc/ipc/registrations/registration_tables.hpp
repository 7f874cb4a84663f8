// Where kernels of one device look peers' segments up: a table a peer process, in device memory.
//
// Kernels read while entries are written. An entry's address is there before its number, and the number alone says
// whether there is one.
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

namespace axon {

// Memory that stays, of a device that is current in each call but find(). One thread takes or gives back at a time, and
// one writes.
class RegistrationTables {
 public:
  static Result<std::unique_ptr<RegistrationTables>> create(int device);

  // A table without entries, for ever.
  const RegistrationEntry* empty() const noexcept { return entries(); }
  // None are left: there are more peers than anybody has.
  std::optional<RegistrationEntry*> take() noexcept;
  // No kernel uses it any more, and it has been cleared.
  void give_back(RegistrationEntry* table) noexcept { free_.push_back(table); }

  // When these return, kernels that start see it.
  Status clear(RegistrationEntry* table);
  Status enter(RegistrationEntry* table, uint32_t number, std::span<std::byte> memory);
  Status remove(RegistrationEntry* table, uint32_t number);

  // What a kernel that starts now would find; none: nothing. Any thread.
  std::span<std::byte> find(const RegistrationEntry* table, uint32_t number) const;

 private:
  RegistrationTables(SharedMemory memory, Stream stream) noexcept;
  RegistrationEntry* entries() const noexcept { return reinterpret_cast<RegistrationEntry*>(memory_.data()); }

  const SharedMemory memory_;
  const Stream stream_;
  size_t num_used_ = 1;  // the empty one
  std::vector<RegistrationEntry*> free_;

  mutable std::mutex mutex_;                                                               // guards what follows
  std::map<std::pair<const RegistrationEntry*, uint32_t>, std::span<std::byte>> entered_;  // by table and number
};

}  // namespace axon
