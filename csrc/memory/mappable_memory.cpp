#include "memory/mappable_memory.hpp"

#include <string>
#include <utility>

#include "base/forks.hpp"
#include "base/random.hpp"
#include "base/resources.hpp"
#include "base/status.hpp"
#include "base/weak_table.hpp"
#include "memory/shared_pages.hpp"

namespace axon {

// Each allocation keeps a descriptor. Connections must not fail for want of one.
static constexpr size_t kSpareDescriptors = 64;

// By the address of the file.
static WeakTable<uint64_t, MappableMemory>& allocations() {
  static OnePerProcess<WeakTable<uint64_t, MappableMemory>> table;
  return table.get();
}

Result<std::shared_ptr<MappableMemory>> MappableMemory::make(size_t num_bytes) {
  size_t num_bytes_of_file = 0;
  if (num_bytes == 0 || __builtin_add_overflow(num_bytes, kHeadNumBytes, &num_bytes_of_file)) {
    return Status(ErrorCode::kInvalidArgument, "num_bytes is " + std::to_string(num_bytes) +
                                                   "; allowed: 1 or more, as many as there are addresses for");
  }
  AXON_TRY(check_descriptors(kSpareDescriptors, "allocate memory that peers map"));
  Result<SharedPages> pages = SharedPages::make_on_use(num_bytes_of_file, "axon-memory");
  if (!pages.ok()) return std::move(pages.status());
  auto memory = std::make_shared<MappableMemory>(std::move(pages).value(), num_bytes);
  allocations().add(memory->location().address, memory);
  return memory;
}

MappableMemory::MappableMemory(SharedPages pages, size_t num_bytes)
    : pages_(std::make_unique<SharedPages>(std::move(pages))), num_bytes_(num_bytes), proof_(random_number()) {
  flag(0).store(proof_, std::memory_order_relaxed);  // a message publishes it
  unused_flags_.reserve(kNumWords - 1);
  for (uint32_t number = kNumWords - 1; number != 0; --number) unused_flags_.push_back(number);
}

MappableMemory::~MappableMemory() {
  allocations().forget(location().address);
}

std::span<std::byte> MappableMemory::bytes() const noexcept {
  return {pages_->data() + kHeadNumBytes, num_bytes_};
}

MappableMemory::Location MappableMemory::location(uint32_t flag) const noexcept {
  return {.address = reinterpret_cast<uint64_t>(pages_->data()),
          .num_bytes = kHeadNumBytes + num_bytes_,
          .proof = proof_,
          .descriptor = pages_->descriptor(),
          .flag = flag};
}

std::shared_ptr<MappableMemory> MappableMemory::around(uint64_t address, uint64_t num_bytes) {
  std::shared_ptr<MappableMemory> memory = allocations().find_at_or_below(address);
  if (!memory) return nullptr;
  const uint64_t offset = address - reinterpret_cast<uint64_t>(memory->bytes().data());
  return offset <= memory->num_bytes_ && num_bytes <= memory->num_bytes_ - offset ? memory : nullptr;
}

uint32_t MappableMemory::take_flag() {
  const std::lock_guard lock(mutex_);
  if (unused_flags_.empty()) return 0;
  const uint32_t flag = unused_flags_.back();
  unused_flags_.pop_back();
  return flag;
}

void MappableMemory::give_back(uint32_t flag) {
  const std::lock_guard lock(mutex_);
  unused_flags_.push_back(flag);
}

std::atomic<uint64_t>& MappableMemory::flag(uint32_t number) const noexcept {
  return reinterpret_cast<std::atomic<uint64_t>*>(pages_->data())[number];
}

}  // namespace axon
