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

namespace axon::ipc {

// Memory that stays, of a device that is current in each call but find(). One thread takes or gives back at a time, and
// one writes.
class RegistrationTables {
 public:
  static Result<std::unique_ptr<RegistrationTables>> create(int device);

  // A table without entries, for ever.
  const cuda::RegistrationEntry* empty() const noexcept { return entries(); }
  // None are left: there are more peers than anybody has.
  std::optional<cuda::RegistrationEntry*> take() noexcept;
  // No kernel uses it any more, and it has been cleared.
  void give_back(cuda::RegistrationEntry* table) noexcept { free_.push_back(table); }

  // When these return, kernels that start see it.
  Status clear(cuda::RegistrationEntry* table);
  Status enter(cuda::RegistrationEntry* table, uint32_t number, std::span<std::byte> memory);
  Status remove(cuda::RegistrationEntry* table, uint32_t number);

  // What a kernel that starts now would find; none: nothing. Any thread.
  std::span<std::byte> find(const cuda::RegistrationEntry* table, uint32_t number) const;

 private:
  RegistrationTables(cuda::SharedMemory memory, cuda::Stream stream) noexcept;
  cuda::RegistrationEntry* entries() const noexcept {
    return reinterpret_cast<cuda::RegistrationEntry*>(memory_.data());
  }

  const cuda::SharedMemory memory_;
  const cuda::Stream stream_;
  size_t num_used_ = 1;  // the empty one
  std::vector<cuda::RegistrationEntry*> free_;

  mutable std::mutex mutex_;                                                                     // guards what follows
  std::map<std::pair<const cuda::RegistrationEntry*, uint32_t>, std::span<std::byte>> entered_;  // by table and number
};

}  // namespace axon::ipc
