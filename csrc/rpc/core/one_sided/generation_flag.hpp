// A random number while a region is exposed, and 0 or another number afterwards. It is at a fixed address, where a
// process of this host reads it before and after the region's bytes, in the same call of process_vm_readv. If both are
// the number of its grant, then it has read this process, and the region was exposed. Peers that have mapped the
// region's memory find it in that memory, too, and compare it before and after each copy from or to the memory.
//
//   GenerationFlag flag(memory);           // any thread; null: memory that peers cannot map
//   grant.flag_value = flag.value(); grant.flag_address = flag.address();
//   flag.clear();                          // before the memory may change its use
//   flag.forget_memory();                  // once no peer uses it any more
//
// The words at fixed addresses are never freed, since a peer may read one at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "memory/mappable_memory.hpp"

namespace axon::rpc {

class GenerationFlag {
 public:
  explicit GenerationFlag(std::shared_ptr<MappableMemory> memory);
  ~GenerationFlag();
  GenerationFlag(const GenerationFlag&) = delete;
  GenerationFlag& operator=(const GenerationFlag&) = delete;

  uint64_t value() const noexcept { return value_; }
  uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(word_); }
  // Tells peers where they find the region's memory and the flag in it. Empty if they cannot map it, or no flag is
  // left.
  std::optional<MappableMemory::Location> location() const noexcept;
  void clear() noexcept;
  void forget_memory() noexcept;

 private:
  std::atomic<uint64_t>* const word_;
  const uint64_t value_;
  std::shared_ptr<MappableMemory> memory_;  // shared with all users of the memory
  uint32_t number_in_memory_ = 0;           // 0: it has none
};

}  // namespace axon::rpc
