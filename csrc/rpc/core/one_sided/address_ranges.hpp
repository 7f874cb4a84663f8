// Finds the memory in which ranges of addresses lie, for users who name memory by its address.
//
//   const AddressRanges ranges(known);                 // sorted once
//   if (ranges.locate(wanted, rows) < wanted.size()) … // one of them is in none of the known ranges
//
// Some 10 ns for each range: most lie in the same memory as the one before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rpc/core/one_sided/block_lists.hpp"

namespace axon::rpc {

struct AddressRange {
  uint64_t address = 0;
  uint64_t num_bytes = 0;
  uint64_t device = 0;  // addresses of several devices differ in meaning, even if they are equal
};

class AddressRanges {
 public:
  // Ranges are numbered in this order. They may overlap: then a range that lies in several is found in one of them.
  explicit AddressRanges(std::span<const AddressRange> known);

  // Writes a row for each range. Returns the number of rows before the first range that lies in no known one.
  size_t locate(std::span<const AddressRange> wanted, BlockRow* rows) const noexcept;

 private:
  struct Known {
    AddressRange range;
    uint64_t number = 0;
    uint64_t furthest_end = 0;  // of this range and of those before it, on the same device
  };

  const Known* find(const AddressRange& wanted) const noexcept;

  std::vector<Known> known_;  // by device and address
};

}  // namespace axon::rpc
