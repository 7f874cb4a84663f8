#include "kernels/ll128/launch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/device_types.hpp"
#include "kernels/team_layout.hpp"

namespace axon::kernels::ll128 {
namespace {

constexpr int kHalfOfAHopper = 66;  // multiprocessors

// Returns the plan of a rank that sends to all others, receives from all, and has a shard of its own, with the maximum
// number of channels.
JobPlan everything(int num_ranks, ChannelLimits limits) {
  JobPlan plan(0, limits);
  const uint32_t num_channels = std::max(limits.of_short, limits.of_long);
  plan.add_control();
  plan.add_own(num_channels);
  for (int peer = 1; peer < num_ranks; ++peer) {
    plan.add_send(peer, num_channels);
    plan.add_receive(peer, num_channels);
  }
  return plan;
}

// Returns the plan for point-to-point messages to and from all others, whose headers have a warp each.
JobPlan batch_with_all(int num_ranks, uint32_t num_channels) {
  JobPlan plan(0, {num_channels, num_channels});
  for (int peer = 1; peer < num_ranks; ++peer) {
    plan.add_send(peer, 1 + num_channels);
    plan.add_receive(peer, 1 + num_channels);
  }
  return plan;
}

void expect_room(const JobPlan& plan, int most_warps, uint32_t preferred_blocks = kPreferredBlocks) {
  Result<cuda::LaunchShape> grid = plan.grid({}, most_warps, preferred_blocks);
  ASSERT_TRUE(grid.ok()) << grid.status().message();
  EXPECT_LE(grid.value().num_blocks, kHalfOfAHopper);
}

TEST(Ll128Launch, a_kernel_leaves_room_for_another_groups) {
  for (const size_t slice_bytes : {kMinSliceBytes, kMaxSliceBytes}) {
    for (int num_ranks = 2; num_ranks <= cuda::kMaxTeamRanks; ++num_ranks) {
      SCOPED_TRACE(std::to_string(num_ranks) + " ranks, blocks of " + std::to_string(slice_bytes));
      const Result<cuda::TeamLayout> layout = lay_out(num_ranks, slice_bytes);
      ASSERT_TRUE(layout.ok());
      const uint32_t all_channels =
          layout.value().traffic[static_cast<int>(cuda::TrafficClass::kCollective)].num_channels;
      const auto num_peers = static_cast<uint32_t>(num_ranks - 1);
      const Result<ChannelLimits> of_exchange = choose_channels(all_channels, num_peers, {});
      const Result<ChannelLimits> of_reduce = choose_reduce_channels(all_channels / 2, num_peers, {});
      ASSERT_TRUE(of_exchange.ok() && of_reduce.ok());
      expect_room(everything(num_ranks, of_exchange.value()), kMostWarpsPerBlock);
      expect_room(everything(num_ranks, of_reduce.value()), kMostWarpsPerLongReduceBlock);
      const uint32_t channels_of_messages =
          layout.value().traffic[static_cast<int>(cuda::TrafficClass::kPointToPoint)].num_channels - 1;
      const Result<ChannelLimits> of_message = choose_message_channels(channels_of_messages, {});
      ASSERT_TRUE(of_message.ok());
      for (const uint32_t num_blocks : {kPreferredBlocks, kMostBlocks}) {
        expect_room(batch_with_all(num_ranks, of_message.value().of_short), kMostWarpsPerBlock, num_blocks);
        expect_room(batch_with_all(num_ranks, of_message.value().of_long), kMostWarpsPerBlock, num_blocks);
      }
    }
  }
}

// Counts how often the warps of a launch do each job of a group, in the order of the kernels.
std::vector<int> times_done(const JobTable& table, uint32_t group) {
  const uint32_t num_warps = table.begins[group + 1] - table.begins[group];
  std::vector<int> times(table.sizes[group]);
  for (uint32_t warp = 0; warp < num_warps; ++warp) {
    for (uint32_t channel = warp; channel < table.sizes[group]; channel += num_warps) ++times[channel];
  }
  return times;
}

TEST(Ll128Launch, fewer_warps_do_each_job_once) {
  constexpr uint32_t kJobsPerWarp = 4;
  for (const uint32_t num_channels : {1, 5, 192}) {
    SCOPED_TRACE(num_channels);
    JobPlan plan(0, {num_channels, num_channels}, kJobsPerWarp);
    plan.add_control();
    plan.add_send(1, num_channels);
    plan.add_receive(1, num_channels);
    const JobTable table = plan.table();
    EXPECT_EQ(times_done(table, kControlGroup), std::vector<int>{1});
    for (const uint32_t group : {kOutGroups, kInGroups}) {
      EXPECT_EQ(times_done(table, group), std::vector<int>(num_channels, 1));
      EXPECT_EQ(table.begins[group + 1] - table.begins[group], (num_channels + kJobsPerWarp - 1) / kJobsPerWarp);
    }
    const Result<cuda::LaunchShape> grid = plan.grid({}, kMostWarpsPerBlock);
    ASSERT_TRUE(grid.ok());
    const int num_warps = grid.value().num_blocks * grid.value().num_threads / 32;
    EXPECT_GE(num_warps, table.begins[kNumGroups]);
    EXPECT_LT(num_warps, table.begins[kNumGroups] + kMostWarpsPerBlock);
  }
}

TEST(Ll128Launch, only_computation_beside_it_makes_a_launch_smaller) {
  EXPECT_EQ(choose_jobs_per_warp(Beside::kNothing, 1), 1u);
  const uint32_t of_short = choose_jobs_per_warp(Beside::kComputation, size_t{1} << 20);
  const uint32_t of_long = choose_jobs_per_warp(Beside::kComputation, size_t{4} << 20);
  EXPECT_GT(of_short, of_long);
  EXPECT_GT(of_long, 1u);
}

TEST(Ll128Launch, more_than_can_run_at_once_is_refused) {
  const JobPlan plan = everything(2, {.of_short = 256, .of_long = 256});
  Result<cuda::LaunchShape> grid = plan.grid({}, kMostWarpsPerLongReduceBlock);
  ASSERT_FALSE(grid.ok());
  EXPECT_EQ(grid.status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace axon::kernels::ll128
