// The host side that all LL128 kernels share: channels, jobs, grid.
//
// A launch is a set of jobs, a warp each, in groups: one for control, one to send to and one to receive from each peer,
// one for what a rank does by itself. A group has as many jobs as its message has channels.
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
// Half of the 132 multiprocessors of an H100 SXM, an H100 NVL or an H200: two groups' kernels run side by side,
// whichever a rank begins first.
inline constexpr uint32_t kMostBlocks = 66;

struct JobTable {
  uint16_t begins[kNumGroups + 1];  // group g has jobs begins[g] … begins[g+1] − 1
};

// How many channels of a link a message may have. Short ones take more: each channel has its latency but once.
struct ChannelLimits {
  uint32_t of_short;
  uint32_t of_long;
};

class JobPlan {
 public:
  JobPlan(int rank, ChannelLimits limits) noexcept : rank_(rank), limits_(limits) {}

  // Channels of a message, the same at both ends: one a chunk, while they last. An empty message has none.
  uint32_t channels_for(size_t num_bytes) const noexcept;

  void add_control() noexcept { sizes_[kControlGroup] = 1; }
  void add_send(int peer, uint32_t num_channels) noexcept { sizes_[kOutGroups + slot_of(peer)] = num_channels; }
  void add_receive(int peer, uint32_t num_channels) noexcept { sizes_[kInGroups + slot_of(peer)] = num_channels; }
  void add_own(uint32_t num_channels) noexcept { sizes_[kOwnGroup] = num_channels; }

  JobTable table() const noexcept;
  // Of all jobs; fails where the caller's wish or the jobs are too many to be resident at once.
  Result<cuda::LaunchShape> grid(Ll128Shape wish, int most_warps, uint32_t preferred_blocks = kPreferredBlocks) const;

 private:
  uint32_t slot_of(int peer) const noexcept { return static_cast<uint32_t>(peer < rank_ ? peer : peer - 1); }

  int rank_;
  ChannelLimits limits_;
  std::array<uint32_t, kNumGroups> sizes_{};
};

// For messages on `num_peers` at a time, of a link's `available` channels; or the caller's wish.
Result<ChannelLimits> choose_channels(uint32_t available, uint32_t num_peers, Ll128Shape wish);
// … of a point-to-point message, which may be alone, and is to fill the link then.
Result<ChannelLimits> choose_message_channels(uint32_t available, Ll128Shape wish);
// … of a reduction whose totals go back: a warp a channel for what a rank sends, what it receives, and what is its own.
Result<ChannelLimits> choose_reduce_channels(uint32_t available, uint32_t num_peers, Ll128Shape wish);

// Shards of whole chunks, one a bit of `owners`, in the order of their ranks; the others are empty.
struct ShardRanges {
  std::array<uint64_t, cuda::kMaxTeamRanks> begins{};
  std::array<uint64_t, cuda::kMaxTeamRanks> sizes{};
};
ShardRanges cut_in_shards(size_t num_bytes, int num_ranks, uint32_t owners) noexcept;

// The kernels; null where there is none.
struct ReduceKernels {
  const void* for_short = nullptr;
  const void* for_long = nullptr;  // many chunks a warp; takes smaller blocks
};
const void* exchange_kernel_address() noexcept;
const void* message_kernel_address() noexcept;  // an exchange some of whose messages may go directly
ReduceKernels reduce_kernels_for(DataType dtype, Reduction reduction) noexcept;
ReduceKernels relay_kernels() noexcept;

}  // namespace axon::kernels::ll128
