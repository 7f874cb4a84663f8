// Tests which connection a runtime uses again, and when it opens another one.
#include "rpc/core/opened_connections.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "comes_true.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;
using Found = Result<std::shared_ptr<Connection>>;

constexpr std::string_view kKey = "the key of an address", kOtherKey = "the key of another one";

OpenedConnections::Destination destination(uint64_t incarnation, std::string_view key = kKey) {
  return {.incarnation = incarnation, .address_key = Secret::from(std::as_bytes(std::span(key))).value()};
}

class OpenedConnectionsTest : public testing::Test {
 protected:
  // Opens the connection between the two runtimes.
  Found find_or_open(OpenedConnections::Destination to) {
    return opened_.find_or_open(std::move(to), Clock::now() + 30s, [&]() -> Found {
      if (num_opened_++ > 0) pair_.meet();
      return pair_.to_server;
    });
  }

  transport::LoopbackFabric fabric_{{.mailbox_capacity = 1 << 20}};
  TwoRuntimes pair_{engine::loopback_transports(fabric_, 2)};
  OpenedConnections opened_;
  int num_opened_ = 0;
};

TEST_F(OpenedConnectionsTest, a_connection_that_lives_is_used_again) {
  const std::shared_ptr<Connection> first = find_or_open(destination(1)).value();
  EXPECT_EQ(find_or_open(destination(1)).value(), first);
  EXPECT_EQ(num_opened_, 1);
  EXPECT_NE(find_or_open(destination(2)).value(), first);
  EXPECT_EQ(num_opened_, 2);
}

TEST_F(OpenedConnectionsTest, a_runtime_that_states_the_incarnation_of_another_does_not_take_its_place) {
  const std::shared_ptr<Connection> first = find_or_open(destination(1)).value();
  EXPECT_NE(find_or_open(destination(1, kOtherKey)).value(), first);
  EXPECT_EQ(find_or_open(destination(1)).value(), first);
}

TEST_F(OpenedConnectionsTest, one_that_either_end_closes_is_used_no_more) {
  std::shared_ptr<Connection> latest = find_or_open(destination(1)).value();
  const auto expect_another = [&] {
    const std::shared_ptr<Connection> next = find_or_open(destination(1)).value();
    EXPECT_NE(next, latest);
    latest = next;
  };
  latest->close(Clock::now() + 30s);
  expect_another();
  pair_.to_client->close(Clock::now());
  EXPECT_TRUE(latest->await_end(Clock::now() + 30s));
  expect_another();
  pair_.client->refuse_new();
  EXPECT_FALSE(latest->is_live());
}

TEST_F(OpenedConnectionsTest, it_is_closed_with_the_last_call_that_is_undone) {
  const std::shared_ptr<Connection> connection = find_or_open(destination(1)).value();
  EXPECT_TRUE(find_or_open(destination(1)).ok());
  opened_.undo(*connection);
  EXPECT_TRUE(connection->is_live());
  opened_.undo(*connection);
  EXPECT_FALSE(connection->is_live());
  opened_.undo(*connection);  // does nothing
  EXPECT_TRUE(connection->await_end(Clock::now() + 30s));
}

TEST_F(OpenedConnectionsTest, after_a_failure_the_next_call_opens_one) {
  const auto fail = []() -> Found { return Status(ErrorCode::kTransport, "refused"); };
  EXPECT_EQ(opened_.find_or_open(destination(1), Clock::now() + 30s, fail).status().message(), "refused");
  EXPECT_TRUE(find_or_open(destination(1)).ok());
}

TEST_F(OpenedConnectionsTest, other_threads_wait_for_the_one_that_opens_it) {
  std::atomic<bool> is_opening{false}, goes_on{false};
  std::thread opening([&] {
    const Found found = opened_.find_or_open(destination(1), Clock::now() + 30s, [&]() -> Found {
      is_opening.store(true);
      EXPECT_TRUE(comes_true([&] { return goes_on.load(); }));
      return pair_.to_server;
    });
    EXPECT_TRUE(found.ok());
  });
  ASSERT_TRUE(comes_true([&] { return is_opening.load(); }));
  const auto never = []() -> Found {
    ADD_FAILURE() << "opened twice";
    return Status(ErrorCode::kInternal, "");
  };
  EXPECT_EQ(opened_.find_or_open(destination(1), Clock::now(), never).status().code(), ErrorCode::kTimeout);
  std::thread waiting(
      [&] { EXPECT_EQ(opened_.find_or_open(destination(1), Clock::now() + 30s, never).value(), pair_.to_server); });
  goes_on.store(true);
  opening.join();
  waiting.join();
}

TEST_F(OpenedConnectionsTest, a_signal_handler_of_the_thread_that_opens_one_does_not_wait_for_it) {
  std::shared_ptr<Connection> of_handler;
  const Found found = opened_.find_or_open(destination(1), Clock::now() + 30s, [&]() -> Found {
    of_handler = find_or_open(destination(1)).value();
    pair_.meet();
    return pair_.to_server;
  });
  ASSERT_TRUE(found.ok());
  EXPECT_NE(found.value(), of_handler);
}

}  // namespace
}  // namespace axon::rpc
