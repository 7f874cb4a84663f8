// Host code shared by zero-copy kernels: grid, shared memory, and what ranks send each other.
#pragma once

#include "cuda/launch.hpp"
#include "kernels/zero_copy/collectives.hpp"

namespace axon::kernels::zero_copy {

inline constexpr uint64_t kVectorBytes = 16;  // unit of zero-copy kernels; addresses are multiples of it

// What a rank tells the other ranks of a zero-copy kernel, and its own blocks.
enum class Vote : uint32_t {
  kAbsent,  // failed in an earlier launch and announces nothing
  kFailed,  // has announced itself, but a rank is missing or disagrees
  kNo,
  kYes,
  kUnheard,
};

// The other half of a vote, except for its last byte, which holds the number of blocks of the rank's kernel. This half
// distinguishes a vote from what a rank in another operation writes there.
inline constexpr uint32_t kVoteTag = 0x5EA1'ED00;
inline constexpr uint32_t kVoteBlocks = 0xFF;
static_assert(cuda::kMaxBlocks <= kVoteBlocks);

inline constexpr uint32_t kShareDone = 1;  // in a done flag, whose other half holds the number of blocks

// What is moved between this rank and another one.
struct ZeroCopyLink {
  cuda::IpcLocation readable;  // what the other rank reads here
  cuda::IpcLocation writable;  // what the other rank writes here
  uint64_t bytes_to;           // of the message to the other rank
  uint64_t bytes_from;         // of the message from it; both ranks must agree
};

struct ZeroCopyHandshake {
  cuda::DeviceDescriptor descriptor;  // its num_bytes is filled in for each link
  uint32_t reads;                     // one bit per rank that this rank reads from
  uint32_t writes;                    // one bit per rank that this rank writes to
  uint32_t is_aligned_16;             // whether all of its own tensors that this rank itself uses are aligned
  ZeroCopyLink links[cuda::kMaxTeamRanks];
};

inline bool is_aligned_16(const void* data) noexcept {
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

// Returns the location `num_bytes` further on.
inline cuda::IpcLocation advanced_by(cuda::IpcLocation location, uint64_t num_bytes) noexcept {
  location.offset = location.offset + num_bytes;
  return location;
}

// Returns one bit per peer.
inline uint32_t peers_of(const cuda::DeviceTeam& team) noexcept {
  return ((1u << team.num_ranks) - 1) & ~(1u << team.rank);
}

// Returns the distance between `num_shards` shards, in whole cache lines. The last shards may be shorter or empty.
inline uint64_t shard_stride(uint64_t num_bytes, int num_shards) noexcept {
  constexpr uint64_t kStep = 128;
  const uint64_t lines_of_all = static_cast<uint64_t>(num_shards) * kStep;
  return (num_bytes + lines_of_all - 1) / lines_of_all * kStep;
}

ZeroCopyHandshake handshake_of(cuda::DeviceOperation operation, DataType dtype, Reduction reduction, int root) noexcept;
// Returns how much dynamic shared memory a block may use on the current device, in a team of any size.
Result<size_t> most_shared_bytes();
// Returns `num_blocks`, or the preferred number if that is 0.
Result<int> count_blocks(int num_blocks, cuda::DeviceOperation operation, int num_ranks);

const void* exchange_kernel_address() noexcept;
const void* broadcast_kernel_address() noexcept;
const void* reduce_kernel_for(DataType dtype, Reduction reduction) noexcept;  // null if there is no kernel

// Loads all zero-copy kernels, for teams of any size, onto the current device.
Status load_kernels();

}  // namespace axon::kernels::zero_copy
