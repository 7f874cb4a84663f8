// Tests that a region stays in use while transfers of its own runtime use it as local memory.
#include "rpc/core/one_sided/region_use.hpp"

#include <gtest/gtest.h>

#include "comes_true.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

TEST(RegionUse, a_closed_region_rests_once_its_last_use_has_ended) {
  transport::LoopbackFabric fabric({.mailbox_capacity = 1 << 20});
  TwoRuntimes pair(engine::loopback_transports(fabric, 2));
  const std::shared_ptr<Exposed>& exposed = pair.server->exposed();
  auto memory = std::make_shared<int>(7);
  const std::weak_ptr<int> watched = memory;
  const std::shared_ptr<Region> region = pair.server_engine().exclusively(
      [&] { return exposed->regions.expose({.name = "memory", .extents = {{1, 1}}}, Owner::of(std::move(memory))); });
  Result<Owner> first = use_region(pair.server_engine(), exposed, region);
  Result<Owner> second = use_region(pair.server_engine(), exposed, region);
  ASSERT_TRUE(first.ok() && second.ok());
  pair.server->revoke(*region);
  EXPECT_EQ(use_region(pair.server_engine(), exposed, region).status().message(), "the region 'memory' is closed");
  first.value() = Owner();
  EXPECT_FALSE(pair.server->is_at_rest(*region));
  EXPECT_FALSE(watched.expired());
  second.value() = Owner();
  EXPECT_TRUE(pair.server->is_at_rest(*region));
  EXPECT_TRUE(comes_true([&] { return watched.expired(); }));
}

}  // namespace
}  // namespace axon::rpc
