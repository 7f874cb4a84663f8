#include "rpc/core/one_sided/address_ranges.hpp"

#include <algorithm>
#include <tuple>

namespace axon::rpc {

namespace {

// Saturates, so that a length that wraps around is in no range.
uint64_t end_of(const AddressRange& range) noexcept {
  uint64_t end = 0;
  return __builtin_add_overflow(range.address, range.num_bytes, &end) ? UINT64_MAX : end;
}

bool contains(const AddressRange& range, const AddressRange& wanted) noexcept {
  return range.device == wanted.device && wanted.address >= range.address &&
         wanted.address - range.address <= range.num_bytes &&
         wanted.num_bytes <= range.num_bytes - (wanted.address - range.address);
}

}  // namespace

AddressRanges::AddressRanges(std::span<const AddressRange> known) {
  known_.reserve(known.size());
  for (size_t i = 0; i < known.size(); ++i) known_.push_back({.range = known[i], .number = i});
  const auto key = [](const Known& each) { return std::tuple(each.range.device, each.range.address); };
  std::ranges::stable_sort(known_, {}, key);
  uint64_t furthest_end = 0;
  for (size_t i = 0; i < known_.size(); ++i) {
    if (i != 0 && known_[i - 1].range.device != known_[i].range.device) furthest_end = 0;
    furthest_end = std::max(furthest_end, end_of(known_[i].range));
    known_[i].furthest_end = furthest_end;
  }
}

// Ranges that begin before the wanted one contain it, if any does. The last of them does, unless known ranges overlap.
const AddressRanges::Known* AddressRanges::find(const AddressRange& wanted) const noexcept {
  const auto key = [](const Known& each) { return std::tuple(each.range.device, each.range.address); };
  auto next = std::ranges::upper_bound(known_, std::tuple(wanted.device, wanted.address), {}, key);
  while (next != known_.begin()) {
    --next;
    if (contains(next->range, wanted)) return &*next;
    if (next->range.device != wanted.device || next->furthest_end < end_of(wanted)) return nullptr;
  }
  return nullptr;
}

size_t AddressRanges::locate(std::span<const AddressRange> wanted, BlockRow* rows) const noexcept {
  const Known* latest = nullptr;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (latest == nullptr || !contains(latest->range, wanted[i])) latest = find(wanted[i]);
    if (latest == nullptr) return i;
    rows[i] = {.memory = latest->number,
               .offset = wanted[i].address - latest->range.address,
               .num_bytes = wanted[i].num_bytes};
  }
  return wanted.size();
}

}  // namespace axon::rpc
