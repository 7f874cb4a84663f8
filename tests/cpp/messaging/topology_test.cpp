// Tests what ranks derive from the hosts in their addresses.
#include "messaging/topology.hpp"

#include <gtest/gtest.h>

namespace axon::messaging {
namespace {

std::vector<int> list(std::span<const int> ranks) {
  return {ranks.begin(), ranks.end()};
}

TEST(TopologyTest, hosts_are_numbered_by_their_lowest_rank) {
  const Topology topology(std::vector<uint64_t>{9, 4, 9, 7, 4, 9});
  EXPECT_EQ(topology.num_ranks(), 6);
  EXPECT_EQ(topology.num_hosts(), 3);
  EXPECT_EQ(list(topology.ranks_on(0)), (std::vector{0, 2, 5}));
  EXPECT_EQ(list(topology.ranks_on(1)), (std::vector{1, 4}));
  EXPECT_EQ(list(topology.ranks_on(2)), (std::vector{3}));
  for (int host = 0; host < 3; ++host) {
    int local_index = 0;
    for (const int rank : topology.ranks_on(host)) {
      EXPECT_EQ(topology.host_of(rank), host);
      EXPECT_EQ(topology.local_index_of(rank), local_index++);
    }
  }
}

TEST(TopologyTest, there_are_as_many_columns_as_the_smallest_host_has_ranks) {
  const Topology uneven(std::vector<uint64_t>{9, 4, 9, 7, 4, 9});
  EXPECT_EQ(uneven.num_columns(), 1);
  EXPECT_EQ(uneven.largest_host(), 3);
  EXPECT_EQ(list(uneven.column(0)), (std::vector{0, 1, 3}));
  const Topology even(std::vector<uint64_t>{5, 5, 6, 6});
  EXPECT_EQ(even.num_columns(), 2);
  EXPECT_EQ(even.largest_host(), 2);
  EXPECT_EQ(list(even.column(0)), (std::vector{0, 2}));
  EXPECT_EQ(list(even.column(1)), (std::vector{1, 3}));
}

TEST(TopologyTest, one_host_has_a_column_for_each_rank) {
  const Topology topology = Topology(std::vector<uint64_t>{6, 6, 6});
  EXPECT_TRUE(topology.is_one_host());
  EXPECT_EQ(topology.num_columns(), 3);
  EXPECT_EQ(list(topology.column(2)), (std::vector{2}));
}

TEST(TopologyTest, a_group_without_ranks_has_no_hosts) {
  EXPECT_EQ(Topology().num_hosts(), 0);
  EXPECT_EQ(Topology(std::vector<uint64_t>()).num_hosts(), 0);
}

}  // namespace
}  // namespace axon::messaging
