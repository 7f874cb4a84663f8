// Cuts a list of blocks into segments of a bounded number of bytes. A block that does not fit is continued in the next
// segment.
//
//   BlockCutter<Block> cutter;                 // Block has num_bytes, and from(begin, num_bytes)
//   while (cutter.has_next(blocks)) use(cutter.take(blocks, kSegmentNumBytes));
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace axon::rpc {

// The list is the same in all calls. Not thread-safe.
template <typename Block>
class BlockCutter {
 public:
  bool has_next(const std::vector<Block>& blocks) const noexcept { return next_ < blocks.size(); }

  std::vector<Block> take(const std::vector<Block>& blocks, uint64_t num_bytes) {
    std::vector<Block> taken;
    while (num_bytes != 0 && has_next(blocks)) {
      const Block& block = blocks[next_];
      const uint64_t length = std::min(num_bytes, block.num_bytes - num_taken_);
      taken.push_back(block.from(num_taken_, length));
      num_bytes -= length;
      num_taken_ += length;
      if (num_taken_ < block.num_bytes) break;
      num_taken_ = 0;
      ++next_;
    }
    return taken;
  }

 private:
  size_t next_ = 0;         // the first block that is not taken completely
  uint64_t num_taken_ = 0;  // bytes of it that are
};

}  // namespace axon::rpc
