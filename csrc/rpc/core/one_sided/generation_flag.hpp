// A random number at a fixed address while a region is exposed, and 0 or another number afterwards. A process of this
// host reads it before and after the region's bytes, in the same call of process_vm_readv. If both are the number of
// its grant, then it has read this process, and the region was exposed.
//
//   const GenerationFlag flag;             // any thread
//   grant.flag_value = flag.value(); grant.flag_address = flag.address();
//   flag.clear();                          // before the memory may change its use
//
// The words are never freed, since a peer may read one at any time.
#pragma once

#include <atomic>
#include <cstdint>

namespace axon::rpc {

class GenerationFlag {
 public:
  GenerationFlag();
  ~GenerationFlag();
  GenerationFlag(const GenerationFlag&) = delete;
  GenerationFlag& operator=(const GenerationFlag&) = delete;

  uint64_t value() const noexcept { return value_; }
  uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(word_); }
  // Release: pairs with the kernel's copy, which reads the flag after the bytes.
  void clear() noexcept { word_->store(0, std::memory_order_release); }

 private:
  std::atomic<uint64_t>* const word_;
  const uint64_t value_;
};

}  // namespace axon::rpc
