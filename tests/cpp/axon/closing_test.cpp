// Peers that are closed while calls, streams and mailboxes of theirs are open.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "axon/connected_pair.hpp"
#include "comes_true.hpp"

namespace axon::library {
namespace {

constexpr const char* kClosedHere = "peer 'server' was closed here";

class Closing : public testing::Test {
 protected:
  Closing() {
    EXPECT_TRUE(pair_.server.add("echo", echo).ok());
    const auto hold = [this](Invocation& invocation) {
      held_.emplace(std::move(invocation));
      is_held_.store(true);
    };
    EXPECT_TRUE(pair_.server.add("hold", hold).ok());
  }

  void expect_closed(const Call& call) {
    EXPECT_EQ(call.status().code(), ErrorCode::kAborted);
    EXPECT_EQ(call.status().message(), kClosedHere);
  }

  // Holds calls of the server until it is destroyed.
  std::optional<Invocation> held_;
  std::atomic<bool> is_held_{false};
  ConnectedPair pair_;
};

TEST_F(Closing, what_is_under_way_is_waited_for) {
  Call call(pair_.to_server, "hold");
  call.start();
  ASSERT_TRUE(comes_true([&] { return is_held_.load(); }));
  std::thread answers([&] {
    std::this_thread::sleep_for(20ms);
    held_->reply();
  });
  EXPECT_TRUE(pair_.to_server.drain(30s));
  answers.join();
  ASSERT_TRUE(call.wait(10s));
  EXPECT_TRUE(call.status().ok());
  EXPECT_EQ(pair_.to_server.failure().message(), kClosedHere);
  pair_.to_server.close();
  EXPECT_TRUE(pair_.to_server.drain(10s));

  Call late(pair_.to_server, "echo");
  late.start();
  ASSERT_TRUE(late.wait(10s));
  expect_closed(late);
  Peer anew = pair_.client.connect(pair_.server.address().value(), 10s).value();
  Call call_anew(anew, "echo");
  call_anew.start();
  ASSERT_TRUE(call_anew.wait(10s));
  EXPECT_TRUE(call_anew.status().ok());
}

TEST_F(Closing, or_not) {
  Call call(pair_.to_server, "hold");
  call.start();
  ASSERT_TRUE(comes_true([&] { return is_held_.load(); }));
  EXPECT_FALSE(pair_.to_server.drain(10ms));
  ASSERT_TRUE(call.wait(10s));
  expect_closed(call);
  ASSERT_TRUE(comes_true([&] { return held_->is_cancelled(); }));
  EXPECT_EQ(held_->caller().failure().message(), "'client' has closed the connection");
  held_->reply();
}

// Its own answer arrives before the connection ends.
TEST_F(Closing, a_function_closes_its_caller_without_waiting_for_itself) {
  std::atomic<bool> has_waited{false};
  const auto leave = [&](Invocation& invocation) {
    has_waited.store(invocation.caller().drain(30s));
    invocation.reply();
  };
  ASSERT_TRUE(pair_.server.add("leave", leave).ok());
  Call call(pair_.to_server, "leave");
  call.start();
  ASSERT_TRUE(call.wait(10s));
  EXPECT_TRUE(call.status().ok()) << call.status().message();
  EXPECT_FALSE(has_waited.load());
  EXPECT_TRUE(comes_true([&] { return !pair_.to_server.failure().ok(); }));
  EXPECT_EQ(pair_.to_server.failure().message(), "'server' has closed the connection");
}

TEST_F(Closing, so_does_a_callback_which_may_call_in_vain) {
  Call late(pair_.to_server, "echo");
  Call call(pair_.to_server, "echo");
  call.on_finished([&] {
    pair_.to_server.close();
    late.start();
  });
  call.start();
  ASSERT_TRUE(call.wait(10s));
  EXPECT_TRUE(call.status().ok());
  ASSERT_TRUE(comes_true([&] { return late.finished(); }));
  expect_closed(late);
}

TEST_F(Closing, streams_mailboxes_and_publications_end_with_their_peer) {
  const auto token = std::make_shared<int>();
  const auto count = [token](Received) -> Generator {
    return [token, number = int64_t{0}](Next& next) mutable {
      next.value().integer(number++);
      next.reply();
    };
  };
  ASSERT_TRUE(pair_.server.add_generator("count", count).ok());
  const auto num_open = [&, idle = token.use_count()] { return token.use_count() - idle; };
  Mailbox full = pair_.server.mailbox("full", {.capacity = 1}).value();
  const Outbox outbox = pair_.client.outbox(pair_.to_server, "full").value();
  Stream numbers(pair_.to_server, "count", {.ahead = 2});
  (void)numbers.arguments(0);
  numbers.start();
  ASSERT_TRUE(numbers.next(10s));
  EXPECT_GT(num_open(), 0);
  std::vector<Call> sent;
  for (int64_t i = 0; i < 2; ++i) {
    sent.emplace_back(outbox).request().integer(i);
    sent.back().start();
  }
  ASSERT_TRUE(sent[0].wait(10s));
  pair_.to_server.close();
  ASSERT_TRUE(sent[1].wait(10s));
  expect_closed(sent[1]);
  while (numbers.next(10s)) continue;
  EXPECT_EQ(numbers.status().message(), kClosedHere);
  EXPECT_TRUE(comes_true([&] { return num_open() == 0; }));
  Publication news("echo");
  news.tell({&pair_.to_server, 1});
  ASSERT_TRUE(news.wait(10s));
  EXPECT_EQ(news.status(0).message(), kClosedHere);
  EXPECT_EQ(full.take(10s).value().values().next().integer, 0);
}

// The opening finds the connection closing, but not ended.
TEST_F(Closing, a_stream_that_is_opened_meanwhile_ends_no_other) {
  Call call(pair_.to_server, "hold");
  call.start();
  ASSERT_TRUE(comes_true([&] { return is_held_.load(); }));
  Peer to_client = held_->caller();
  held_->reply();
  std::optional<Next> asked;
  std::atomic<bool> is_asked{false};
  const auto slow = [&](Received) -> Generator {
    return [&](Next& next) {
      asked.emplace(std::move(next));
      is_asked.store(true);
    };
  };
  std::thread closing;
  const auto closes = [&](Received) -> Generator {
    closing = std::thread([&] { EXPECT_TRUE(to_client.drain(30s)); });
    EXPECT_TRUE(comes_true([&] { return !to_client.failure().ok(); }));
    return [](Next& next) { next.end(); };
  };
  ASSERT_TRUE(pair_.server.add_generator("slow", slow).ok());
  ASSERT_TRUE(pair_.server.add_generator("closes", closes).ok());
  Stream first(pair_.to_server, "slow", {.ahead = 1});
  (void)first.arguments(0);
  first.start();
  ASSERT_TRUE(comes_true([&] { return first.next(1ms) || is_asked.load(); }));
  Stream second(pair_.to_server, "closes", {.ahead = 1});
  (void)second.arguments(0);
  second.start();
  EXPECT_FALSE(second.next(10s));
  EXPECT_EQ(second.failure(), "the runtime 'server' is closing the connection");
  EXPECT_FALSE(asked->is_cancelled());
  asked->value().integer(7);
  asked->reply();
  ASSERT_TRUE(first.next(10s)) << first.status().message();
  EXPECT_EQ(first.value().next().integer, 7);
  closing.join();
}

}  // namespace
}  // namespace axon::library
