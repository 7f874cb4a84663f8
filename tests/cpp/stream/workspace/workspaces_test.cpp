// What a group's ranks get who ask for the same. Without a GPU nobody has memory.
#include "stream/workspace/workspaces.hpp"

#include <gtest/gtest.h>

#include "comm/engines.hpp"
#include "cuda/device.hpp"
#include "transport/loopback/loopback.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;

constexpr size_t kNumRanks = 3;
constexpr size_t kNumBytes = size_t{3} << 20;

TEST(Workspaces, are_made_once_or_found_not_to_be_had) {
  LoopbackFabric fabric;
  Engines engines{loopback_transports(fabric, kNumRanks)};
  std::vector<std::unique_ptr<Communicator>> communicators = engines.form("workspaces");
  on_all_ranks(kNumRanks, [&](int rank) {
    Communicator& communicator = *communicators[static_cast<size_t>(rank)];
    Workspaces workspaces(communicator, 0);
    EXPECT_EQ(workspaces.find(1), nullptr);
    const Result<const Workspace*> made = workspaces.obtain(kNumBytes, 30s);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made.value() != nullptr, num_devices() > 0);
    EXPECT_EQ(workspaces.find(kNumBytes), made.value());
    const uint32_t num_started = communicator.num_started();
    const Result<const Workspace*> again = workspaces.obtain(kNumBytes, 30s);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again.value(), made.value());
    EXPECT_EQ(communicator.num_started(), num_started) << "nobody has to be asked";
    workspaces.let_go({});
  });
}

TEST(Workspaces, larger_ones_than_the_setting_allows_are_not_asked_for) {
  LoopbackFabric fabric;
  Engines engines{loopback_transports(fabric, kNumRanks)};
  std::vector<std::unique_ptr<Communicator>> communicators = engines.form("workspaces");
  Workspaces workspaces(*communicators[0], 0);
  const Result<const Workspace*> made = workspaces.obtain(workspaces.most_bytes() + 1, 1ms);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made.value(), nullptr);
  EXPECT_EQ(communicators[0]->num_started(), 0u);
}

}  // namespace
}  // namespace axon
