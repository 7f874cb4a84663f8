// Blocks of memory that transfers name by number. They lie at equal distances, or a table says where each one is.
//
//   Result<LocalBlocks> here = LocalBlocks::laid_out(parts, {.num_bytes = 4096, .stride = 4096, .count = 1024});
//   Result<RemoteBlocks> there = RemoteBlocks::listed(memories, table);
//
// Constant; any thread. Neither keeps local memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "memory/buffer.hpp"
#include "rpc/core/one_sided/remote_memory.hpp"

namespace axon::rpc {

// Blocks of equal length at equal distances. Block i begins at offset + i * stride.
struct BlockLayout {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;  // of each block; at least 1
  uint64_t stride = 0;     // at least num_bytes
  uint64_t count = 0;
};

// A row of a table of blocks: the number of the memory, and where the block is in it. It may be empty.
struct BlockRow {
  uint64_t memory = 0;
  uint64_t offset = 0;
  uint64_t num_bytes = 0;

  bool operator==(const BlockRow&) const = default;
};

class LocalBlocks {
 public:
  struct Block {
    std::byte* data = nullptr;
    uint64_t num_bytes = 0;
    int32_t device = -1;  // −1: the host
    uint32_t part = 0;    // the number of the part in which it lies, of all memories

    // Returns whether the memory of `next` follows that of this block, in the same part. Different parts may be
    // different allocations, which devices do not copy as one.
    bool is_followed_by(const Block& next) const noexcept { return data + num_bytes == next.data && part == next.part; }
  };
  // Consecutive parts, whose bytes are numbered one after the other.
  using Memory = std::vector<Block>;

  // They fail if a block exceeds its memory, or crosses the end of a part.
  static Result<LocalBlocks> laid_out(const Memory& memory, const BlockLayout& layout);
  static Result<LocalBlocks> listed(std::span<const Memory> memories, std::span<const BlockRow> table);

  size_t size() const noexcept { return blocks_.size(); }
  const Block& operator[](size_t number) const noexcept { return blocks_[number]; }
  // The length of all blocks, if they were laid out.
  const std::optional<uint64_t>& length() const noexcept { return length_; }
  // The device of all blocks, if it is one.
  const std::optional<int32_t>& device() const noexcept { return device_; }

 private:
  LocalBlocks(std::vector<Block> blocks, std::optional<uint64_t> length) noexcept;

  std::vector<Block> blocks_;
  std::optional<uint64_t> length_;
  std::optional<int32_t> device_;
};

class RemoteBlocks {
 public:
  // A part of remote memory.
  struct Memory {
    std::shared_ptr<RemoteMemory> memory;  // shared with transfers and slices
    uint64_t offset = 0;
    uint64_t num_bytes = 0;
  };
  struct Block {
    uint64_t offset = 0;  // in the remote memory
    uint64_t num_bytes = 0;
    uint32_t memory = 0;  // its number, see memory_of()
  };

  // They fail if a block exceeds its memory.
  static Result<RemoteBlocks> laid_out(const Memory& memory, const BlockLayout& layout);
  static Result<RemoteBlocks> listed(const std::vector<Memory>& memories, std::span<const BlockRow> table);

  size_t size() const noexcept { return blocks_.size(); }
  const Block& operator[](size_t number) const noexcept { return blocks_[number]; }
  const std::shared_ptr<RemoteMemory>& memory_of(const Block& block) const noexcept { return memories_[block.memory]; }
  // All memories, by number.
  const std::vector<std::shared_ptr<RemoteMemory>>& memories() const noexcept { return memories_; }
  const std::optional<uint64_t>& length() const noexcept { return length_; }

 private:
  RemoteBlocks(const std::vector<Memory>& memories, std::vector<Block> blocks, std::optional<uint64_t> length);

  std::vector<std::shared_ptr<RemoteMemory>> memories_;  // shared with transfers and slices
  std::vector<Block> blocks_;
  std::optional<uint64_t> length_;
};

}  // namespace axon::rpc
