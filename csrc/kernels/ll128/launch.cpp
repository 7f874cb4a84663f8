#include "kernels/ll128/launch.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace axon::kernels::ll128 {
namespace {

constexpr uint32_t kFewestWarpsPerBlock = 4;
// Over all links (benchmarks/results/kernels_ll128_2xh200.jsonl;
// docs/adr/0012-send-larger-gpu-messages-as-ll128-lines.md).
constexpr ChannelLimits kPreferredChannels{.of_short = 192, .of_long = 160};
// For a point-to-point message. Long ones are zero-copy, by fewer warps on more multiprocessors. The bandwidth of 1 GiB
// each way between two H100 is 338 GB/s with 160 warps, 11 per block, and 357 to 358 with 5 per block. It is 364 to 365
// with 128 warps, 4 per block.
constexpr ChannelLimits kMessageChannels{.of_short = 192, .of_long = 128};
constexpr size_t kLongBytes = size_t{4} << 20;

uint32_t divide_up(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

}  // namespace

uint32_t JobPlan::channels_for(size_t num_bytes) const noexcept {
  const uint32_t most = num_bytes < kLongBytes ? limits_.of_short : limits_.of_long;
  return static_cast<uint32_t>(
      std::min<size_t>(most, (num_bytes + cuda::kWarpChunkPayloadBytes - 1) / cuda::kWarpChunkPayloadBytes));
}

// The more blocks a call has, the more time a product beside it loses. Two H200, an all_reduce of 1 MiB and a product
// of 8192³: 147 µs with 46 blocks, 60 with 12 (NCCL 62 with 24). But an all_reduce of 4 MiB alone takes 62 µs with four
// jobs per warp, 35 with two, and 25 with one.
uint32_t choose_jobs_per_warp(Beside beside, size_t largest_message) noexcept {
  constexpr size_t kMostBytesForFewestBlocks = size_t{1} << 20;
  if (beside == Beside::kNothing) return 1;
  return largest_message <= kMostBytesForFewestBlocks ? 4 : 3;
}

JobTable JobPlan::table() const noexcept {
  JobTable table{};
  for (uint32_t group = 0; group < kNumGroups; ++group) {
    table.begins[group + 1] = static_cast<uint16_t>(table.begins[group] + divide_up(sizes_[group], jobs_per_warp_));
    table.sizes[group] = static_cast<uint16_t>(sizes_[group]);
  }
  return table;
}

Result<cuda::LaunchShape> JobPlan::grid(Ll128Shape wish, int most_warps, uint32_t preferred_blocks) const {
  const auto most = static_cast<uint32_t>(most_warps);
  const uint32_t total_warps = std::max<uint32_t>(table().begins[kNumGroups], 1);
  const auto wished = static_cast<uint32_t>(wish.warps_per_block);
  if (jobs_per_warp_ > 1) preferred_blocks = 1;
  const uint32_t num_warps =
      wished != 0 ? wished : std::clamp(divide_up(total_warps, preferred_blocks), kFewestWarpsPerBlock, most);
  const uint32_t num_blocks = divide_up(total_warps, num_warps);
  if (num_warps > most || num_blocks > kMostBlocks) {
    return Status(ErrorCode::kInvalidArgument, std::to_string(total_warps) + " warps with " +
                                                   std::to_string(num_warps) + " per block need more than " +
                                                   std::to_string(kMostBlocks) + " blocks, or exceed " +
                                                   std::to_string(most_warps) + " per block");
  }
  return cuda::LaunchShape{.num_blocks = static_cast<int>(num_blocks), .num_threads = static_cast<int>(32 * num_warps)};
}

static Result<ChannelLimits> choose_channels(uint32_t available, ChannelLimits preferred, Ll128Shape wish) {
  const auto wished = static_cast<uint32_t>(wish.num_channels);
  if (wished > available) {
    return Status(
        ErrorCode::kInvalidArgument,
        std::to_string(wished) + " channels per link were requested; the team has " + std::to_string(available));
  }
  if (wished != 0) return ChannelLimits{wished, wished};
  return ChannelLimits{.of_short = std::clamp(preferred.of_short, 1u, available),
                       .of_long = std::clamp(preferred.of_long, 1u, available)};
}

Result<ChannelLimits> choose_channels(uint32_t available, uint32_t num_peers, Ll128Shape wish) {
  return choose_channels(available, {kPreferredChannels.of_short / num_peers, kPreferredChannels.of_long / num_peers},
                         wish);
}

Result<ChannelLimits> choose_message_channels(uint32_t available, Ll128Shape wish) {
  return choose_channels(available, kMessageChannels, wish);
}

Result<ChannelLimits> choose_reduce_channels(uint32_t available, uint32_t num_peers, Ll128Shape wish) {
  Result<ChannelLimits> limits = choose_channels(available, num_peers, wish);
  if (!limits.ok() || wish.num_channels != 0) return limits;
  const uint32_t most = (kMostBlocks * kMostWarpsPerLongReduceBlock - 1) / (2 * num_peers + 1);
  limits.value().of_short = std::min(limits.value().of_short, most);
  return limits;
}

ShardRanges cut_in_shards(size_t num_bytes, int num_ranks, uint32_t owners) noexcept {
  const auto num_owners = static_cast<uint64_t>(std::popcount(owners));
  const uint64_t num_chunks = (num_bytes + cuda::kWarpChunkPayloadBytes - 1) / cuda::kWarpChunkPayloadBytes;
  const uint64_t stride = (num_chunks + num_owners - 1) / num_owners * cuda::kWarpChunkPayloadBytes;
  ShardRanges shards;
  uint64_t begin = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if ((owners >> rank & 1) == 0) continue;
    shards.begins[rank] = begin;
    shards.sizes[rank] = std::min(stride, num_bytes - begin);
    begin += shards.sizes[rank];
  }
  return shards;
}

}  // namespace axon::kernels::ll128
