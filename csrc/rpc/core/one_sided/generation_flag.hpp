// A random number at a fixed address while a region is exposed, and 0 or another number afterwards. A process of this
// host reads it before and after the region's bytes, in the same call of process_vm_readv. If both are the number of
// its grant, then it has read this process, and the region was exposed.
//
//   GenerationFlag flag(memory);           // any thread
//   grant.flag_value = flag.value(); grant.flag_address = flag.address();
//   flag.clear();                          // before the memory may change its use
//   flag.give_back();                      // once no process reads it any more; the destructor does it, too
//
// The flag of mappable memory lies in that memory, so that peers which have mapped it need no system call. Other words
// are never freed, since a peer may read one at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "memory/mappable_memory.hpp"

namespace axon::rpc {

class GenerationFlag {
 public:
  // `memory` is that of the region, if it is mappable, and null otherwise.
  explicit GenerationFlag(std::shared_ptr<MappableMemory> memory);
  ~GenerationFlag() { give_back(); }
  GenerationFlag(const GenerationFlag&) = delete;
  GenerationFlag& operator=(const GenerationFlag&) = delete;

  uint64_t value() const noexcept { return value_; }
  uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(word_); }
  // The memory in which it lies; null if that is not mappable, or has no flag left.
  const std::shared_ptr<MappableMemory>& memory() const noexcept { return memory_; }
  // Release: pairs with the copies of peers, which read the flag after the bytes.
  void clear() noexcept {
    if (word_ != nullptr) word_->store(0, std::memory_order_release);
  }
  void give_back() noexcept;

 private:
  std::shared_ptr<MappableMemory> memory_;  // shared with all users of the memory
  std::atomic<uint64_t>* word_;             // null once it is given back
  const uint64_t value_;
};

}  // namespace axon::rpc
