// Tests what happens to a connection that one of its ends closes.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "comes_true.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/networks.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class ClosingTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  ClosingTest() {
    const auto hold_in = [](std::atomic<Invocation*>& held) {
      return [&held](Invocation& each) { held.store(&each); };
    };
    EXPECT_TRUE(pair_.server->add("hold", hold_in(held_by_server_)).ok());
    EXPECT_TRUE(pair_.client->add("hold", hold_in(held_by_client_)).ok());
    for (const auto& core : {pair_.server, pair_.client}) EXPECT_TRUE(core->add("echo", echo).ok());
  }

  static std::vector<std::unique_ptr<transport::Transport>> transports(transport::Network& network) {
    std::vector<std::unique_ptr<transport::Transport>> made;
    for (int i = 0; i < 2; ++i) made.push_back(network.make_transport());
    return made;
  }

  void call_each_other() {
    of_client_ = start(*pair_.to_server, "hold", transport::pattern(8, 1));
    of_server_ = start(*pair_.to_client, "hold", transport::pattern(8, 2));
    ASSERT_TRUE(comes_true([&] { return held_by_server_.load() != nullptr && held_by_client_.load() != nullptr; }));
  }

  static void expect_failure(Connection& connection, Call& call, ErrorCode code, const char* text) {
    wait_for(connection, call);
    ASSERT_FALSE(call.status().ok());
    EXPECT_EQ(call.status().code(), code);
    EXPECT_EQ(call.status().message(), text);
  }

  void expect_closed_by_client() {
    EXPECT_TRUE(pair_.to_server->await_end(Clock::now() + 30s));
    EXPECT_TRUE(pair_.to_client->await_end(Clock::now() + 30s));
    EXPECT_EQ(pair_.to_server->failure().message(), "peer 'server' was closed here");
    EXPECT_EQ(pair_.to_client->failure().message(), "'client' has closed the connection");
    EXPECT_EQ(pair_.client->num_connections(), 0u);
    EXPECT_EQ(pair_.server->num_connections(), 0u);
  }

  std::atomic<Invocation*> held_by_server_{nullptr};
  std::atomic<Invocation*> held_by_client_{nullptr};
  std::unique_ptr<transport::Network> network_ = GetParam().make();
  TwoRuntimes pair_{transports(*network_)};
  CallPointer of_client_;
  CallPointer of_server_;
};

INSTANTIATE_TEST_SUITE_P(Networks, ClosingTest,
                         testing::Values(transport::kLoopback, transport::kUcxSharedMemory, transport::kUcxTcp),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ClosingTest, calls_end_at_once_at_both_ends) {
  call_each_other();
  pair_.to_server->close(Clock::now());
  expect_failure(*pair_.to_server, *of_client_, ErrorCode::kAborted, "peer 'server' was closed here");
  expect_failure(*pair_.to_client, *of_server_, ErrorCode::kPeerLost, "'client' has closed the connection");
  expect_closed_by_client();
  EXPECT_FALSE(pair_.to_server->has_drained());
  EXPECT_TRUE(held_by_server_.load()->is_cancelled());
  EXPECT_TRUE(held_by_client_.load()->is_cancelled());
  echo(*held_by_server_.load());  // a late answer does no harm
  echo(*held_by_client_.load());
  const CallPointer later = invoke(*pair_.to_server, "echo", transport::pattern(8, 1));
  EXPECT_EQ(later->status().message(), "peer 'server' was closed here");
}

TEST_P(ClosingTest, what_is_under_way_is_finished_and_nothing_begins) {
  call_each_other();
  pair_.to_server->close(Clock::now() + 60s);
  const CallPointer late = invoke(*pair_.to_server, "echo", transport::pattern(8, 1));
  EXPECT_EQ(late->status().message(), "peer 'server' was closed here");
  EXPECT_EQ(pair_.to_server->failure().message(), "peer 'server' was closed here");
  const CallPointer refused = invoke(*pair_.to_client, "echo", transport::pattern(8, 1));
  EXPECT_EQ(refused->status().message(), "ConnectionError");
  ValueReader said(refused->reply().values());
  EXPECT_EQ(said.next().count, 2u);
  EXPECT_EQ(said.next().text(), "the runtime 'client' is closing the connection");
  echo(*held_by_server_.load());
  wait_for(*pair_.to_server, *of_client_);
  EXPECT_TRUE(of_client_->status().ok());
  EXPECT_FALSE(pair_.to_server->await_end(Clock::now() + 10ms));
  echo(*held_by_client_.load());
  wait_for(*pair_.to_client, *of_server_);
  EXPECT_TRUE(of_server_->status().ok()) << of_server_->status().message();
  expect_closed_by_client();
  EXPECT_TRUE(pair_.to_server->has_drained());
}

TEST_P(ClosingTest, what_is_started_before_is_under_way) {
  std::vector<CallPointer> calls;
  for (int i = 0; i < 2000; ++i)
    calls.push_back(start(*pair_.to_server, "echo", transport::pattern(100, i)));  // more than the slots
  pair_.to_server->close(Clock::now() + 60s);
  for (const CallPointer& call : calls) {
    wait_for(*pair_.to_server, *call);
    EXPECT_TRUE(call->status().ok());
  }
  expect_closed_by_client();
  EXPECT_TRUE(pair_.to_server->has_drained());
}

TEST_P(ClosingTest, what_is_left_at_the_earliest_deadline_ends) {
  call_each_other();
  pair_.to_server->close(Clock::now() + 60s);
  pair_.to_server->close(Clock::now() + 20ms);
  pair_.to_server->close(Clock::now() + 60s);
  expect_failure(*pair_.to_server, *of_client_, ErrorCode::kAborted, "peer 'server' was closed here");
  expect_failure(*pair_.to_client, *of_server_, ErrorCode::kPeerLost, "'client' has closed the connection");
  EXPECT_FALSE(pair_.to_server->has_drained());
  pair_.to_client->close(Clock::now());  // it ended because the other end closed it
  expect_closed_by_client();
  for (Invocation* held : {held_by_server_.load(), held_by_client_.load()}) echo(*held);
}

// The connection has ended, and so has returned what it was sending and receiving.
TEST_P(ClosingTest, memory_under_way_is_given_back) {
  const std::vector<std::byte> bytes(1 << 20);
  std::atomic<int> num_kept{0};
  const auto kept = [&] {
    ++num_kept;
    return Owner(&num_kept, [](void* count) { --*static_cast<std::atomic<int>*>(count); });
  };
  const auto add = [&](Outbound& outbound) {
    const auto size = static_cast<int64_t>(bytes.size());
    outbound.add({.shape = {&size, 1}, .data = {bytes.data(), bytes.size()}}, kept());
    outbound.seal();
  };
  std::atomic<int> num_answered{0};
  const auto expose = [&](Invocation& each) {
    each.answer.open();
    add(each.answer);
    each.reply();
    ++num_answered;
  };
  ASSERT_TRUE(pair_.server->add("expose", expose).ok());
  std::vector<CallPointer> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(CallPointer::adopt(*new Call));
    calls.back()->request.open("expose");
    add(calls.back()->request);
    pair_.to_server->start(*calls.back());
  }
  ASSERT_TRUE(comes_true([&] { return num_answered.load() > 3; }));
  pair_.to_server->close(Clock::now());
  expect_closed_by_client();
  for (const CallPointer& call : calls) wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(comes_true([&] { return num_kept.load() == 0; }));
}

TEST_P(ClosingTest, a_peer_that_connects_again_has_another_connection) {
  const std::vector<std::byte> bytes(8);
  for (int i = 0; i < 50; ++i) {
    pair_.to_server->close(Clock::now() + 60s);
    expect_closed_by_client();
    pair_.meet();
    EXPECT_TRUE(invoke(*pair_.to_server, "echo", bytes)->status().ok());
    EXPECT_TRUE(invoke(*pair_.to_client, "echo", bytes)->status().ok());
    EXPECT_EQ(pair_.client->num_connections(), 1u);
    EXPECT_EQ(pair_.server->num_connections(), 1u);
  }
}

// Connections that have ended, but are not yet forgotten, do not count.
TEST(Closing, connections_that_have_ended_make_room_at_once) {
  transport::LoopbackFabric fabric({.largest_eager_num_bytes = 1000, .mailbox_capacity = 1 << 20});
  const RuntimeOptions one{.name = "", .max_connections = 1};
  TwoRuntimes pair(engine::loopback_transports(fabric, 2), one, one);
  for (int i = 0; i < 20; ++i) {
    pair.to_server->close(Clock::now());
    ASSERT_TRUE(pair.to_client->await_end(Clock::now() + 30s));
    pair.meet();
  }
}

}  // namespace
}  // namespace axon::rpc
