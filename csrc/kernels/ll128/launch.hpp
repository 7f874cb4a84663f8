// Host code shared by all LL128 kernels: channels, jobs, grid.
//
// A launch is a set of jobs. The jobs form groups: one for control, one to send to and one to receive from each peer,
// and one for a rank's local work. A group has as many jobs as its message has channels. Each job has a warp of its
// own, or a warp does several jobs of one group in turn (kernel.cuh).
#pragma once

#include <array>
#include <cstdint>

#include "cuda/launch.hpp"
#include "kernels/ll128/collectives.hpp"

namespace axon::kernels::ll128 {

enum : uint32_t { kControlGroup = 0, kOutGroups = 1, kInGroups = 16, kOwnGroup = 31, kNumGroups = 32 };

inline constexpr int kMostWarpsPerBlock = 16;
inline constexpr int kMostWarpsPerLongReduceBlock = 8;
inline constexpr uint32_t kPreferredBlocks = 32;
// Half of the 132 multiprocessors of an H100 SXM, an H100 NVL or an H200. Kernels of two groups can so run at the same
// time, whichever a rank starts first.
inline constexpr uint32_t kMostBlocks = 66;

struct JobTable {
  uint16_t begins[kNumGroups + 1];  // the warps of group g are begins[g] … begins[g+1] − 1
  uint16_t sizes[kNumGroups];       // the number of jobs of each group
};

// Limits of a message's channels on a link. Short messages use more channels, since each channel pays its latency only
// once.
struct ChannelLimits {
  uint32_t of_short;
  uint32_t of_long;
};

class JobPlan {
 public:
  JobPlan(int rank, ChannelLimits limits, uint32_t jobs_per_warp = 1) noexcept
      : rank_(rank), limits_(limits), jobs_per_warp_(jobs_per_warp) {}

  // Returns the channels of a message, the same at both ends: one per chunk up to the limit. An empty message has none.
  uint32_t channels_for(size_t num_bytes) const noexcept;

  void add_control() noexcept { sizes_[kControlGroup] = 1; }
  void add_send(int peer, uint32_t num_channels) noexcept { sizes_[kOutGroups + slot_of(peer)] = num_channels; }
  void add_receive(int peer, uint32_t num_channels) noexcept { sizes_[kInGroups + slot_of(peer)] = num_channels; }
  void add_own(uint32_t num_channels) noexcept { sizes_[kOwnGroup] = num_channels; }

  JobTable table() const noexcept;
  // Returns the grid for all jobs. Fails if the caller's request or the jobs exceed what can be resident at once.
  Result<cuda::LaunchShape> grid(Ll128Shape wish, int most_warps, uint32_t preferred_blocks = kPreferredBlocks) const;

 private:
  uint32_t slot_of(int peer) const noexcept { return static_cast<uint32_t>(peer < rank_ ? peer : peer - 1); }

  int rank_;
  ChannelLimits limits_;
  uint32_t jobs_per_warp_;
  std::array<uint32_t, kNumGroups> sizes_{};  // in jobs
};

// Returns how many jobs a warp does in a launch whose messages have at most this size: several beside computation.
uint32_t choose_jobs_per_warp(Beside beside, size_t largest_message) noexcept;

// For messages on `num_peers` links at a time, with `available` channels per link; or as the caller requested.
Result<ChannelLimits> choose_channels(uint32_t available, uint32_t num_peers, Ll128Shape wish);
// The same for a point-to-point message, which may be the only one and must then fill the link.
Result<ChannelLimits> choose_message_channels(uint32_t available, Ll128Shape wish);
// The same for a reduction whose totals are sent back. Each channel has one warp each for what a rank sends, what it
// receives, and its own shard.
Result<ChannelLimits> choose_reduce_channels(uint32_t available, uint32_t num_peers, Ll128Shape wish);

// Shards of whole chunks for the ranks in `owners`, in rank order. The other ranks have empty shards.
struct ShardRanges {
  std::array<uint64_t, cuda::kMaxTeamRanks> begins{};
  std::array<uint64_t, cuda::kMaxTeamRanks> sizes{};
};
ShardRanges cut_in_shards(size_t num_bytes, int num_ranks, uint32_t owners) noexcept;

// The kernels, or null if there is no kernel.
struct ReduceKernels {
  const void* for_short = nullptr;
  const void* for_long = nullptr;  // many chunks per warp; uses smaller blocks
};
const void* exchange_kernel_address() noexcept;
const void* message_kernel_address() noexcept;  // an exchange with messages that may be zero-copy
ReduceKernels reduce_kernels_for(DataType dtype, Reduction reduction) noexcept;
ReduceKernels relay_kernels() noexcept;

}  // namespace axon::kernels::ll128
