// Tests what keeps memory that devices of the initiator use directly: here, two runtimes of one process.
#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "comes_true.hpp"
#include "rpc/core/devices.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class DirectUses : public Devices {
 public:
  DirectUses() : Devices({.mailbox_capacity = kRoom}, 1000) {
    std::tie(to_itself, from_itself) = pair.connect_server_to_itself();
    remote = open(*region, to_itself);
  }

  bool begin_use() { return to_itself->one_sided().initiator().begin_use(*remote); }
  void end_use() {
    pair.server_engine().exclusively([&] { to_itself->one_sided().initiator().end_use(*remote); });
  }
  bool is_at_rest() { return pair.server->is_at_rest(*region); }

  std::shared_ptr<Connection> to_itself;
  std::shared_ptr<Connection> from_itself;
  std::shared_ptr<RemoteMemory> remote;
};

TEST(DirectDeviceUses, the_memory_is_kept_until_the_last_use_ends) {
  DirectUses test;
  ASSERT_TRUE(test.remote->is_of_this_process());
  EXPECT_EQ(test.remote->extents()[0].address, test.memory.address());
  ASSERT_TRUE(test.begin_use());
  ASSERT_TRUE(test.begin_use());
  test.pair.server->revoke(*test.region);
  EXPECT_TRUE(comes_true([&] { return !test.begin_use(); }));
  EXPECT_FALSE(test.is_at_rest());
  EXPECT_EQ(test.pair.server->holders(*test.region), std::vector<std::string>{"itself"});
  test.end_use();
  EXPECT_FALSE(test.is_at_rest());
  test.end_use();
  EXPECT_TRUE(comes_true([&] { return test.is_at_rest(); }));
  EXPECT_FALSE(test.begin_use());
}

TEST(DirectDeviceUses, without_a_use_the_memory_is_at_rest_at_once) {
  DirectUses test;
  ASSERT_TRUE(test.begin_use());
  test.end_use();
  test.pair.server->revoke(*test.region);
  EXPECT_TRUE(comes_true([&] { return test.is_at_rest(); }));
}

TEST(DirectDeviceUses, the_owner_does_not_learn_of_an_end_before_the_last_use) {
  DirectUses test;
  ASSERT_TRUE(test.begin_use());
  test.to_itself->close(Clock::now());
  EXPECT_TRUE(comes_true([&] { return test.to_itself->has_ended(); }));
  EXPECT_FALSE(test.begin_use());
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(test.from_itself->has_ended());
  test.pair.server->revoke(*test.region);
  EXPECT_FALSE(test.is_at_rest());
  test.end_use();
  EXPECT_TRUE(comes_true([&] { return test.from_itself->has_ended(); }));
  EXPECT_TRUE(comes_true([&] { return test.is_at_rest(); }));
}

}  // namespace
}  // namespace axon::rpc
