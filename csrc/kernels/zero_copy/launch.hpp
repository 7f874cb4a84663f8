// The host side that zero-copy kernels share.
#pragma once

#include "cuda/launch.hpp"
#include "kernels/zero_copy/collectives.hpp"

namespace axon::kernels::zero_copy {

inline constexpr size_t kMostZeroCopySharedBytes = 192 << 10;  // of a block, in a team of any size; Hopper has 227 KB
inline constexpr uint64_t kVectorBytes = 16;  // what zero-copy kernels move; addresses are multiples of it

// What a rank tells the others of a zero-copy kernel, and its own blocks.
enum class Vote : uint32_t {
  kAbsent,  // has failed in an earlier launch and announces nothing
  kFailed,  // has announced itself, but somebody is missing or disagrees
  kNo,
  kYes,
  kUnheard,
};

// A vote's other half, but for its last byte, which tells how many blocks the rank's kernel has. By this half it
// cannot be mistaken for what a rank at odds writes there.
inline constexpr uint32_t kVoteTag = 0x5EA1'ED00;
inline constexpr uint32_t kVoteBlocks = 0xFF;
static_assert(cuda::kMaxBlocks <= kVoteBlocks);

inline constexpr uint32_t kShareDone = 1;  // in a done flag, whose other half tells the number of blocks, too

// Between this rank and another.
struct ZeroCopyLink {
  cuda::IpcLocation readable;  // what that rank reads here …
  cuda::IpcLocation writable;  // … and writes: told to it
  uint64_t bytes_to;           // of the message there …
  uint64_t bytes_from;         // … and from there: what both must agree on
};

struct ZeroCopyHandshake {
  cuda::DeviceDescriptor descriptor;  // its num_bytes is filled in for each link
  uint32_t reads;                     // a bit a rank: this one reads from it, …
  uint32_t writes;                    // … writes to it
  uint32_t is_aligned_16;             // whether all that this rank itself uses of its own tensors is aligned
  ZeroCopyLink links[cuda::kMaxTeamRanks];
};

inline bool is_aligned_16(const void* data) noexcept {
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

// `num_bytes` further on.
inline cuda::IpcLocation behind(cuda::IpcLocation location, uint64_t num_bytes) noexcept {
  location.offset = location.offset + num_bytes;
  return location;
}

// A bit a rank.
inline uint32_t peers_of(const cuda::DeviceTeam& team) noexcept {
  return ((1u << team.num_ranks) - 1) & ~(1u << team.rank);
}

// Of so many shards: whole cache lines. The last ones may be shorter, or empty.
inline uint64_t shard_stride(uint64_t num_bytes, int num_shards) noexcept {
  constexpr uint64_t kStep = 128;
  const uint64_t lines_of_all = static_cast<uint64_t>(num_shards) * kStep;
  return (num_bytes + lines_of_all - 1) / lines_of_all * kStep;
}

ZeroCopyHandshake handshake_of(cuda::DeviceOperation operation, DataType dtype, Reduction reduction, int root) noexcept;
// `num_blocks`, or what is preferred if that is 0.
Result<int> count_blocks(int num_blocks, cuda::DeviceOperation operation, int num_ranks);

const void* exchange_kernel_address() noexcept;
const void* broadcast_kernel_address() noexcept;
const void* reduce_kernel_for(DataType dtype, Reduction reduction) noexcept;  // null: there is none

// Puts all zero-copy kernels, for teams of any size, on the current device.
Status load_kernels();

}  // namespace axon::kernels::zero_copy
