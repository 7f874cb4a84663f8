#include "memory/mapped_memory.hpp"

#include <string>

#include "base/forks.hpp"
#include "base/weak_table.hpp"

namespace axon {

// The process is a part of the key, so that a peer leads to its own memory only.
using MappingKey = std::pair<int32_t, uint64_t>;

static WeakTable<MappingKey, MappedMemory>& mappings() {
  static OnePerProcess<WeakTable<MappingKey, MappedMemory>> table;
  return table.get();
}

static const std::atomic<uint64_t>* words_of(const SharedPages& pages) noexcept {
  return reinterpret_cast<const std::atomic<uint64_t>*>(pages.data());
}

Result<std::shared_ptr<MappedMemory>> MappedMemory::open(int32_t pid, const MappableMemory::Location& location) {
  const MappingKey key(pid, location.proof);
  if (auto known = mappings().find(key)) return known;
  Result<SharedPages> pages = SharedPages::open(pid, location.descriptor, location.num_bytes);
  if (!pages.ok()) return std::move(pages.status());
  const bool has_head = location.num_bytes > MappableMemory::kHeadNumBytes;
  if (!has_head || words_of(pages.value())[0].load(std::memory_order_relaxed) != location.proof) {
    return Status(ErrorCode::kInvalidArgument, "descriptor " + std::to_string(location.descriptor) + " of process " +
                                                   std::to_string(pid) + " is of other memory");
  }
  auto memory = std::make_shared<MappedMemory>(std::move(pages).value(), pid, location);
  mappings().add(key, memory);
  return memory;
}

MappedMemory::~MappedMemory() {
  mappings().forget({pid_, location_.proof});
}

bool MappedMemory::contains(uint64_t address, uint64_t num_bytes) const noexcept {
  const uint64_t offset = address - location_.address;  // large if the address is below
  return offset >= MappableMemory::kHeadNumBytes && offset <= location_.num_bytes &&
         num_bytes <= location_.num_bytes - offset;
}

const std::atomic<uint64_t>* MappedMemory::flag(uint32_t number) const noexcept {
  return number == 0 || number >= MappableMemory::kNumWords ? nullptr : words_of(pages_) + number;
}

}  // namespace axon
