// Copies a list of blocks by one kernel. Source and target may be memory of this GPU, of a peer GPU that is mapped
// here, or pinned host memory, at any alignment.
//
//   const BlockUnits units = plan_units(blocks);    // cuts long blocks into units of work
//   fill_units(blocks, units, table);               // in pinned memory, which is kept until the copy has run
//   AXON_TRY(copy_blocks(table, units.count, stream));
//
// A warp copies one unit at a time, by vectors of 16 bytes where source and target allow it. It reads the table from
// host memory, one unit ahead of the copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::kernels {

// Blocks of a list must not overlap: they are copied in any order.
struct BlockCopy {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  uint64_t num_bytes = 0;
};

struct BlockUnits {
  uint64_t num_bytes = 0;  // of each unit, except for the last one of a block
  size_t count = 0;        // of all blocks
};

BlockUnits plan_units(std::span<const BlockCopy> blocks) noexcept;
// Writes `units.count` entries.
void fill_units(std::span<const BlockCopy> blocks, const BlockUnits& units, BlockCopy* table) noexcept;

// `table` is in pinned memory, and stays unchanged until the kernel has run.
Status copy_blocks(const BlockCopy* table, size_t num_units, cuda::StreamView stream);

// Loads the kernel onto the current device.
Status load_copy_blocks();

}  // namespace axon::kernels
