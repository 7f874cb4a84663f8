// Numbers by which peers refer to objects later. A number contains the index of an entry and how often the entry has
// been used, so a late or repeated answer finds nothing. Numbers are not secret.
//
//   const uint64_t number = waiting.add(transfer);
//   Transfer* transfer = waiting.find(number);
//   waiting.remove(number);
//
// Allocates nothing after warm-up. Does not own the objects. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace axon {

template <typename T>
class Numbered {
 public:
  uint64_t add(T& thing) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(entries_.size()));
      entries_.emplace_back();
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    entries_[index] = {.thing = &thing, .num_uses = entries_[index].num_uses + 1};
    return uint64_t{entries_[index].num_uses} << 32 | index;
  }

  T* find(uint64_t number) const noexcept {
    const auto index = static_cast<uint32_t>(number);
    if (index >= entries_.size()) return nullptr;
    return entries_[index].num_uses == number >> 32 ? entries_[index].thing : nullptr;
  }

  // The number must be in use.
  void remove(uint64_t number) noexcept {
    const auto index = static_cast<uint32_t>(number);
    entries_[index].thing = nullptr;
    free_.push_back(index);
  }

  // Returns whether the number was in use and has been removed: an answer that carries it is late.
  bool was_here(uint64_t number) const noexcept {
    const auto index = static_cast<uint32_t>(number);
    const uint64_t use = number >> 32;
    return index < entries_.size() && use != 0 && use <= entries_[index].num_uses && find(number) == nullptr;
  }

 private:
  struct Entry {
    T* thing = nullptr;  // null: the entry is free
    uint32_t num_uses = 0;
  };

  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
};

}  // namespace axon
