// Messages that leave once a flag is set, as a device does. No thread waits for that, and deadlines hold meanwhile.
#include <gtest/gtest.h>

#include <functional>

#include "comes_true.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class StartFlagsTest : public testing::Test {
 protected:
  StartFlagsTest() {
    EXPECT_TRUE(pair_.server
                    ->add("count",
                          [this](Invocation& invocation) {
                            num_called_.fetch_add(1);
                            echo(invocation);
                          })
                    .ok());
    // Its answer waits for a start flag.
    EXPECT_TRUE(pair_.server
                    ->add("later",
                          [this](Invocation& invocation) {
                            fill(invocation.answer, {}, {});
                            invocation.answer.leave_when(flag_, owner());
                            invocation.reply();
                          })
                    .ok());
  }

  Owner owner() {
    return {this, [](void* self) { static_cast<StartFlagsTest*>(self)->num_released_.fetch_add(1); }};
  }

  CallPointer start_gated(std::chrono::milliseconds timeout = 30s) {
    CallPointer call = CallPointer::adopt(*new Call);
    call->timeout = timeout;
    start_gated(*call);
    return call;
  }
  void start_gated(Call& call) {
    fill(call.request, "count", transport::pattern(100, 1));
    call.request.leave_when(flag_, owner());
    pair_.to_server->start(call);
  }

  std::atomic<uint32_t> flag_{0};
  std::atomic<int> num_called_{0};
  std::atomic<int> num_released_{0};
  transport::LoopbackFabric fabric_{{.largest_eager_num_bytes = 6000, .mailbox_capacity = 1 << 20}};
  TwoRuntimes pair_{engine::loopback_transports(fabric_, 2)};
};

TEST_F(StartFlagsTest, a_call_leaves_when_the_flag_is_set) {
  const CallPointer call = start_gated();
  EXPECT_FALSE(pair_.to_server->wait(*call, Clock::now() + 50ms));
  EXPECT_EQ(num_called_.load(), 0);
  flag_.store(1);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(call->status().ok()) << call->status().message();
  EXPECT_EQ(num_called_.load(), 1);
}

TEST_F(StartFlagsTest, although_no_thread_waits_for_it) {
  const CallPointer call = start_gated();
  std::this_thread::sleep_for(50ms);
  flag_.store(1);
  EXPECT_TRUE(comes_true([&] { return call->released(); }));
  EXPECT_EQ(num_called_.load(), 1);
}

TEST_F(StartFlagsTest, of_several_flags_all_have_to_be_set) {
  std::atomic<uint32_t> second{0};
  const CallPointer call = CallPointer::adopt(*new Call);
  fill(call->request, "count", transport::pattern(100, 1));
  call->request.leave_when(flag_, owner());
  call->request.leave_when(second, owner());
  pair_.to_server->start(*call);
  EXPECT_FALSE(pair_.to_server->wait(*call, Clock::now() + 50ms));
  flag_.store(1);
  EXPECT_FALSE(pair_.to_server->wait(*call, Clock::now() + 50ms));
  second.store(1);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(call->status().ok()) << call->status().message();
}

TEST_F(StartFlagsTest, others_do_not_wait_for_it) {
  const CallPointer call = start_gated();
  EXPECT_TRUE(invoke(*pair_.to_server, "count", transport::pattern(10, 2))->status().ok());
  EXPECT_FALSE(call->finished());
  flag_.store(1);
  wait_for(*pair_.to_server, *call);
}

TEST_F(StartFlagsTest, so_does_an_answer) {
  const CallPointer call = start(*pair_.to_server, "later", {});
  EXPECT_FALSE(pair_.to_server->wait(*call, Clock::now() + 50ms));
  flag_.store(1);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(call->status().ok()) << call->status().message();
}

TEST_F(StartFlagsTest, a_call_that_does_not_leave_in_time_is_over) {
  const CallPointer call = start_gated(100ms);
  wait_for(*pair_.to_server, *call);
  EXPECT_EQ(call->status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(num_released_.load(), 1);
  flag_.store(1);
  EXPECT_TRUE(invoke(*pair_.to_server, "count", transport::pattern(10, 2))->status().ok());
  EXPECT_EQ(num_called_.load(), 1);
}

TEST_F(StartFlagsTest, one_that_was_given_up_may_be_used_again) {
  const CallPointer call = start_gated();
  for (int round = 1; round <= 3; ++round) {
    pair_.to_server->cancel(*call);
    wait_for(*pair_.to_server, *call);
    EXPECT_EQ(call->status().code(), ErrorCode::kCancelled);
    EXPECT_EQ(num_released_.load(), round);
    call->reset();
    start_gated(*call);
  }
  flag_.store(1);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(call->status().ok()) << call->status().message();
  EXPECT_EQ(num_called_.load(), 1);
}

TEST_F(StartFlagsTest, not_more_may_wait_than_may_for_a_slot) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2), {}, {.name = "client", .max_waiting_calls = 2});
  const auto start_at = [&](Connection& connection) {
    CallPointer call = CallPointer::adopt(*new Call);
    fill(call->request, "nothing", transport::pattern(100, 1));
    call->request.leave_when(flag_, owner());
    connection.start(*call);
    return call;
  };
  const CallPointer calls[] = {start_at(*pair.to_server), start_at(*pair.to_server), start_at(*pair.to_server)};
  wait_for(*pair.to_server, *calls[2]);
  EXPECT_EQ(calls[2]->status().code(), ErrorCode::kResourceExhausted);
  flag_.store(1);
  for (const CallPointer& call : calls) wait_for(*pair.to_server, *call);
  EXPECT_EQ(calls[0]->status().code(), ErrorCode::kRemote);
  wait_for(*pair.to_server, *start_at(*pair.to_server));
}

TEST_F(StartFlagsTest, so_is_one_that_is_cancelled_or_whose_runtime_closes) {
  const CallPointer cancelled = start_gated();
  const CallPointer closed = start_gated();
  pair_.to_server->cancel(*cancelled);
  pair_.client->close();
  for (const CallPointer& call : {cancelled, closed}) ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  EXPECT_EQ(cancelled->status().code(), ErrorCode::kCancelled);
  EXPECT_EQ(closed->status().code(), ErrorCode::kAborted);
  EXPECT_TRUE(comes_true([&] { return num_released_.load() == 2; }));
  flag_.store(1);
  EXPECT_EQ(num_called_.load(), 0);
}

TEST_F(StartFlagsTest, an_answer_whose_caller_has_gone_is_dropped) {
  const CallPointer call = start(*pair_.to_server, "later", {}, 100ms);
  ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  EXPECT_EQ(call->status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(num_released_.load(), 0);
  pair_.client->close();
  EXPECT_TRUE(comes_true([&] { return num_released_.load() == 1; }));
}

TEST_F(StartFlagsTest, so_is_one_whose_runtime_closes) {
  const CallPointer call = start(*pair_.to_server, "later", {});
  EXPECT_FALSE(pair_.to_server->wait(*call, Clock::now() + 50ms));
  pair_.server->close();
  ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  EXPECT_EQ(call->status().code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(comes_true([&] { return num_released_.load() == 1; }));
}

}  // namespace
}  // namespace axon::rpc
