#include "rpc/core/one_sided/block_lists.hpp"

#include <algorithm>
#include <string>

namespace axon::rpc {

namespace {

Status invalid(std::string why) {
  return {ErrorCode::kInvalidArgument, "plan: " + std::move(why)};
}

Status check(const BlockLayout& layout, uint64_t num_bytes, const char* side) {
  if (layout.num_bytes == 0) return invalid(std::string(side) + " blocks have 0 bytes; allowed: 1 or more");
  if (layout.stride < layout.num_bytes) {
    return invalid(std::string(side) + " blocks of " + std::to_string(layout.num_bytes) + " bytes have a stride of " +
                   std::to_string(layout.stride) + " bytes; allowed: their length or more");
  }
  if (layout.count == 0) return {};
  uint64_t end = 0;
  const bool overflows = __builtin_mul_overflow(layout.count - 1, layout.stride, &end) ||
                         __builtin_add_overflow(end, layout.offset, &end) ||
                         __builtin_add_overflow(end, layout.num_bytes, &end);
  if (!overflows && end <= num_bytes) return {};
  return invalid(std::to_string(layout.count) + " " + side + " blocks of " + std::to_string(layout.num_bytes) +
                 " bytes, at a stride of " + std::to_string(layout.stride) + " from offset " +
                 std::to_string(layout.offset) + " on, exceed the memory of " + std::to_string(num_bytes) + " bytes");
}

// Checks a row of a table against the bytes of its memory. `sizes` are those of all memories.
Status check(const BlockRow& row, size_t number, std::span<const uint64_t> sizes, const char* side) {
  const auto which = [&] { return std::string(side) + " block " + std::to_string(number); };
  if (row.memory >= sizes.size()) {
    return invalid(which() + " is in memory " + std::to_string(row.memory) + "; allowed: 0 to " +
                   std::to_string(sizes.size()) + ", exclusive");
  }
  const uint64_t size = sizes[row.memory];
  if (row.offset <= size && row.num_bytes <= size - row.offset) return {};
  return invalid(which() + ", of " + std::to_string(row.num_bytes) + " bytes at offset " + std::to_string(row.offset) +
                 ", exceeds memory " + std::to_string(row.memory) + " of " + std::to_string(size) + " bytes");
}

// Finds blocks of one memory, mostly in the part of the one before.
class Parts {
 public:
  // Its parts are numbered from `first_part` on.
  Parts(const LocalBlocks::Memory& memory, uint32_t first_part)
      : memory_(&memory), ends_(ends_of(memory)), first_part_(first_part) {}

  uint64_t num_bytes() const noexcept { return ends_.empty() ? 0 : ends_.back(); }

  // The range is within the memory.
  Result<LocalBlocks::Block> find(uint64_t offset, uint64_t num_bytes, size_t number) {
    if (num_bytes == 0) return LocalBlocks::Block();
    if (offset >= ends_[latest_] || offset < begin_of(latest_)) {
      latest_ = static_cast<size_t>(std::ranges::upper_bound(ends_, offset) - ends_.begin());
    }
    if (num_bytes > ends_[latest_] - offset) {
      return invalid("local block " + std::to_string(number) + " crosses the end of part " + std::to_string(latest_) +
                     "; allowed: blocks within one part of the memory");
    }
    const LocalBlocks::Block& part = (*memory_)[latest_];
    return LocalBlocks::Block{.data = part.data + (offset - begin_of(latest_)),
                              .num_bytes = num_bytes,
                              .device = part.device,
                              .part = first_part_ + static_cast<uint32_t>(latest_)};
  }

 private:
  uint64_t begin_of(size_t part) const noexcept { return part == 0 ? 0 : ends_[part - 1]; }

  const LocalBlocks::Memory* memory_;
  std::vector<uint64_t> ends_;  // of the parts
  uint32_t first_part_;
  size_t latest_ = 0;
};

}  // namespace

LocalBlocks::LocalBlocks(std::vector<Block> blocks, std::optional<uint64_t> length) noexcept
    : blocks_(std::move(blocks)), length_(length) {
  const auto is_elsewhere = [&](const Block& block) {
    return block.num_bytes != 0 && block.device != blocks_.front().device;
  };
  if (!blocks_.empty() && std::ranges::none_of(blocks_, is_elsewhere)) device_ = blocks_.front().device;
}

Result<LocalBlocks> LocalBlocks::laid_out(const Memory& memory, const BlockLayout& layout) {
  Parts parts(memory, 0);
  AXON_TRY(check(layout, parts.num_bytes(), "local"));
  std::vector<Block> blocks;
  blocks.reserve(layout.count);
  for (uint64_t i = 0; i < layout.count; ++i) {
    Result<Block> block = parts.find(layout.offset + i * layout.stride, layout.num_bytes, i);
    if (!block.ok()) return std::move(block.status());
    blocks.push_back(block.value());
  }
  return LocalBlocks(std::move(blocks), layout.num_bytes);
}

Result<LocalBlocks> LocalBlocks::listed(std::span<const Memory> memories, std::span<const BlockRow> table) {
  std::vector<Parts> parts;
  std::vector<uint64_t> sizes;
  uint32_t num_parts = 0;
  for (const Memory& memory : memories) {
    parts.emplace_back(memory, num_parts);
    num_parts += static_cast<uint32_t>(memory.size());
    sizes.push_back(parts.back().num_bytes());
  }
  std::vector<Block> blocks;
  blocks.reserve(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    AXON_TRY(check(table[i], i, sizes, "local"));
    Result<Block> block = parts[table[i].memory].find(table[i].offset, table[i].num_bytes, i);
    if (!block.ok()) return std::move(block.status());
    blocks.push_back(block.value());
  }
  return LocalBlocks(std::move(blocks), std::nullopt);
}

RemoteBlocks::RemoteBlocks(const std::vector<Memory>& memories, std::vector<Block> blocks,
                           std::optional<uint64_t> length)
    : blocks_(std::move(blocks)), length_(length) {
  for (const Memory& memory : memories) memories_.push_back(memory.memory);
}

Result<RemoteBlocks> RemoteBlocks::laid_out(const Memory& memory, const BlockLayout& layout) {
  AXON_TRY(check(layout, memory.num_bytes, "remote"));
  std::vector<Block> blocks;
  blocks.reserve(layout.count);
  for (uint64_t i = 0; i < layout.count; ++i) {
    blocks.push_back({.offset = memory.offset + layout.offset + i * layout.stride, .num_bytes = layout.num_bytes});
  }
  return RemoteBlocks({memory}, std::move(blocks), layout.num_bytes);
}

Result<RemoteBlocks> RemoteBlocks::listed(const std::vector<Memory>& memories, std::span<const BlockRow> table) {
  std::vector<uint64_t> sizes;
  for (const Memory& memory : memories) sizes.push_back(memory.num_bytes);
  std::vector<Block> blocks;
  blocks.reserve(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    AXON_TRY(check(table[i], i, sizes, "remote"));
    const auto memory = static_cast<uint32_t>(table[i].memory);
    blocks.push_back(
        {.offset = memories[memory].offset + table[i].offset, .num_bytes = table[i].num_bytes, .memory = memory});
  }
  return RemoteBlocks(memories, std::move(blocks), std::nullopt);
}

}  // namespace axon::rpc
