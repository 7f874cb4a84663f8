#include "gpu_comm/local_team.hpp"

#include <gtest/gtest.h>

#include <array>

namespace axon::gpu_comm {
namespace {

TEST(LocalTeam, numbers_the_ranks_of_its_host) {
  const messaging::Topology topology(std::array<uint64_t, 5>{7, 8, 7, 9, 7});
  const LocalTeam team(topology, 2);
  EXPECT_EQ(team.size(), 3);
  EXPECT_EQ(team.index(), 1);
  for (int index = 0; index < 3; ++index) {
    EXPECT_EQ(team.rank_of(index), 2 * index);
    EXPECT_EQ(team.index_of(2 * index), index);
  }
}

TEST(LocalTeam, knows_no_rank_of_other_hosts) {
  const messaging::Topology topology(std::array<uint64_t, 5>{7, 8, 7, 9, 7});
  for (const int elsewhere : {-1, 1, 3, 5}) EXPECT_EQ(LocalTeam(topology, 2).index_of(elsewhere), -1) << elsewhere;
  const LocalTeam alone(topology, 3);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.index(), 0);
  EXPECT_EQ(alone.index_of(3), 0);
  EXPECT_EQ(alone.index_of(2), -1);
}

TEST(LocalTeam, is_the_whole_group_on_one_host) {
  const LocalTeam team(messaging::Topology(std::array<uint64_t, 3>{7, 7, 7}), 2);
  EXPECT_EQ(team.size(), 3);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(team.index_of(rank), rank);
}

}  // namespace
}  // namespace axon::gpu_comm
