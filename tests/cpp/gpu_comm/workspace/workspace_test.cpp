// The ranks' agreement on workspaces. Without a GPU no rank has memory to export; with one, all ranks of this process
// share it.
#include "gpu_comm/workspace/workspace.hpp"

#include <gtest/gtest.h>

#include <array>

#include "engine/engines.hpp"
#include "transport/loopback/loopback.hpp"

namespace axon::gpu_comm {
namespace {

using namespace std::chrono_literals;

constexpr size_t kNumRanks = 3;

TEST(Workspace, all_ranks_get_one_or_none_does) {
  transport::LoopbackFabric fabric;
  engine::Engines engines{engine::loopback_transports(fabric, kNumRanks)};
  std::vector<std::unique_ptr<engine::Communicator>> communicators = engines.form("workspace");
  std::array<bool, kNumRanks> has_one{};
  engine::on_all_ranks(kNumRanks, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    Result<std::unique_ptr<Workspace>> made =
        Workspace::make(*communicators[index], {.device = 0, .num_bytes = 1 << 20, .timeout = 30s});
    ASSERT_TRUE(made.ok()) << made.status().message();
    has_one[index] = made.value() != nullptr;
    if (has_one[index]) {
      EXPECT_EQ(made.value()->num_bytes(), size_t{1} << 20);
    }
  });
  for (const bool each : has_one) EXPECT_EQ(each, has_one.front());
  for (const auto& communicator : communicators) EXPECT_EQ(communicator->num_started(), 2u);
}

TEST(Workspace, a_rank_that_does_not_come_is_named) {
  transport::LoopbackFabric fabric;
  engine::Engines engines{engine::loopback_transports(fabric, kNumRanks)};
  std::vector<std::unique_ptr<engine::Communicator>> communicators = engines.form("workspace");
  engine::on_all_ranks(kNumRanks, [&](int rank) {
    if (rank == 1) return;
    Result<std::unique_ptr<Workspace>> made =
        Workspace::make(*communicators[static_cast<size_t>(rank)], {.num_bytes = 1 << 20, .timeout = 200ms});
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.status().message().find("rank 1"), std::string::npos) << made.status().message();
  });
}

}  // namespace
}  // namespace axon::gpu_comm
