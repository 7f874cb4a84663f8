// Tests what is read from a copy of a rank's slice: counts and descriptors of both regions, also torn and wiped ones.
#include "gpu_comm/progress_reader.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>

namespace axon::gpu_comm {
namespace {

// The packet by which a rank says that it enters its all_reduce of this number, of as many elements.
cuda::LlPacket packet_of(uint32_t epoch) {
  const cuda::DeviceDescriptor call{.operation = static_cast<uint64_t>(cuda::DeviceOperation::kAllReduce),
                                    .dtype = static_cast<uint64_t>(DataType::kFloat32),
                                    .reduction = static_cast<uint64_t>(Reduction::kSum),
                                    .root = cuda::kNoRoot,
                                    .num_bytes = uint64_t{4} * (epoch % 100)};
  const auto bits = std::bit_cast<uint64_t>(call);
  return {static_cast<uint32_t>(bits), epoch, static_cast<uint32_t>(bits >> 32), epoch};
}

class ProgressReaderTest : public testing::Test {
 protected:
  void enter(int index, uint32_t epoch) { copy_.descriptors[epoch % 2][static_cast<size_t>(index)] = packet_of(epoch); }

  const LocalTeam team_{messaging::Topology(std::array<uint64_t, 3>{7, 7, 7}), 1};
  TeamCopy copy_;
};

TEST_F(ProgressReaderTest, a_team_without_calls_has_counted_none) {
  const std::vector<engine::DeviceProgress> ranks = progress_in(copy_, team_);
  ASSERT_EQ(ranks.size(), 3u);
  for (int index = 0; index < 3; ++index) {
    EXPECT_EQ(ranks[static_cast<size_t>(index)].rank, index);
    EXPECT_EQ(ranks[static_cast<size_t>(index)].num_entered, 0u);
    EXPECT_TRUE(ranks[static_cast<size_t>(index)].call.empty());
  }
}

TEST_F(ProgressReaderTest, the_later_region_counts_for_peers_and_the_state_for_the_rank_itself) {
  copy_.state.epochs[0] = 7;
  enter(0, 7);
  enter(0, 8);
  enter(2, 6);
  enter(2, 7);
  const std::vector<engine::DeviceProgress> ranks = progress_in(copy_, team_);
  EXPECT_EQ(ranks[0].num_entered, 8u);
  EXPECT_EQ(ranks[0].call, "all_reduce (float32, 8 elements, SUM)");
  EXPECT_EQ(ranks[1].num_entered, 7u);
  EXPECT_EQ(ranks[1].call, "");
  EXPECT_EQ(ranks[2].num_entered, 7u);
}

TEST_F(ProgressReaderTest, counts_wrap) {
  enter(0, UINT32_MAX);
  enter(0, UINT32_MAX - 1);
  enter(2, UINT32_MAX);
  enter(2, 2);
  const std::vector<engine::DeviceProgress> ranks = progress_in(copy_, team_);
  EXPECT_EQ(ranks[0].num_entered, UINT32_MAX);
  EXPECT_EQ(ranks[2].num_entered, 2u);
}

TEST_F(ProgressReaderTest, torn_and_wiped_packets_do_not_count) {
  enter(0, 7);
  copy_.descriptors[0][0] = packet_of(8);
  copy_.descriptors[0][0].high_epoch = 6;
  copy_.descriptors[1][2] = packet_of(1u << 20);
  const std::vector<engine::DeviceProgress> ranks = progress_in(copy_, team_);
  EXPECT_EQ(ranks[0].num_entered, 7u);
  EXPECT_EQ(ranks[2].num_entered, 0u);
}

}  // namespace
}  // namespace axon::gpu_comm
