// How a tensor or shard is divided into segments. All ranks that exchange it divide it alike.
//
//   const Division halves = Division::into(2);
//   halves.part(tensor.num_bytes, 1);               // the second half
//   halves.column(0, 4).part(tensor.num_bytes, 1);  // the first quarter of the second half
#pragma once

#include "collectives/patterns.hpp"

namespace axon::gpu_comm {

class Division {
 public:
  // The same number of parts of each shard.
  static Division into(size_t num_parts) noexcept { return {num_parts, 0}; }
  // Parts of the same length, except for the last one; a shard may have fewer than `num_parts`.
  static Division of_length(size_t part_bytes, size_t num_parts) noexcept { return {num_parts, part_bytes}; }

  // Returns a division whose parts are what this column of `num_columns` carries; empty if there is no such column.
  Division column(int column, int num_columns) const noexcept {
    Division divided = *this;
    divided.column_ = column;
    divided.num_columns_ = num_columns;
    return divided;
  }

  size_t num_parts() const noexcept { return num_parts_; }
  size_t longest_part(size_t shard_bytes) const noexcept { return part(shard_bytes, 0).length; }
  collectives::Range part(size_t shard_bytes, size_t index) const noexcept {
    const collectives::Range whole = whole_part(shard_bytes, index);
    if (column_ >= num_columns_) return {whole.begin, 0};
    if (num_columns_ == 1) return whole;
    const collectives::Range carried = collectives::Partition(whole.length, num_columns_)[column_];
    return {whole.begin + carried.begin, carried.length};
  }

 private:
  Division(size_t num_parts, size_t part_bytes) noexcept : num_parts_(num_parts), part_bytes_(part_bytes) {}

  collectives::Range whole_part(size_t shard_bytes, size_t index) const noexcept {
    if (part_bytes_ != 0) return collectives::Chunks(shard_bytes, part_bytes_)[index];
    return collectives::Partition(shard_bytes, static_cast<int>(num_parts_))[static_cast<int>(index)];
  }

  size_t num_parts_;
  size_t part_bytes_;
  int column_ = 0;
  int num_columns_ = 1;
};

}  // namespace axon::gpu_comm
