// Copies between this process and memory that a peer exposes, without the peer. They tell whether the memory was
// exposed all along. A DirectRead is one copy in the kernel from another process. A MemoryCopy uses memory of this
// process, or memory that it has mapped.
//
//   DirectRead read(pid, {.address = flag_address, .value = flag_value});
//   while (read.has_room()) read.add(address, local, num_bytes);
//   switch (read.run()) …
//
// Progress owner only: a peer's request to end direct copies is answered between two of them.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace axon::rpc {

enum class CopyOutcome : uint8_t {
  kCopied,
  kRevoked,     // the region is not exposed any more; what has been copied is invalid
  kUnreadable,  // the kernel cannot or may not read this memory
  kGone,        // the process has ended
};

class DirectRead {
 public:
  static constexpr size_t kMostBlocks = 256;

  struct FlagLocation {
    uint64_t address = 0;
    uint64_t value = 0;
  };

  DirectRead(int32_t pid, FlagLocation flag) noexcept;
  bool has_room() const noexcept { return num_blocks_ < kMostBlocks; }
  void add(uint64_t address, std::byte* to, size_t num_bytes) noexcept;
  CopyOutcome run() noexcept;

 private:
  const int32_t pid_;
  const FlagLocation flag_;
  size_t num_blocks_ = 0;
  size_t num_bytes_ = 0;
  uint64_t before_ = 0;
  uint64_t after_ = 0;
  std::array<iovec, kMostBlocks + 2> here_;
  std::array<iovec, kMostBlocks + 2> there_;
};

// How this process uses memory of a peer by addresses of its own.
struct MappingHere {
  const std::atomic<uint64_t>* flag = nullptr;
  uint64_t flag_value = 0;  // while the memory is exposed
  uint64_t shift = 0;       // is added to addresses of the owner
};

class MemoryCopy {
 public:
  enum class Direction : uint8_t { kFromPeer, kToPeer };
  static constexpr size_t kMostBlocks = 256;

  MemoryCopy(Direction direction, const MappingHere& mapping) noexcept : direction_(direction), mapping_(mapping) {}
  bool has_room() const noexcept { return num_blocks_ < kMostBlocks; }
  void add(uint64_t address, std::byte* local, size_t num_bytes) noexcept {
    auto* const remote = reinterpret_cast<std::byte*>(address + mapping_.shift);
    blocks_[num_blocks_++] = {.remote = remote, .local = local, .num_bytes = num_bytes};
  }
  CopyOutcome run() noexcept;

 private:
  struct Block {
    std::byte* remote;
    std::byte* local;
    size_t num_bytes;
  };

  const Direction direction_;
  const MappingHere mapping_;
  size_t num_blocks_ = 0;
  std::array<Block, kMostBlocks> blocks_;
};

}  // namespace axon::rpc
