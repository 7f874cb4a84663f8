// Messages that leave when a word says so, as a device writes it: nobody waits for that, and deadlines hold meanwhile.
#include <gtest/gtest.h>

#include "runtime/runtimes.hpp"
#include "transport/node.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;

class GatesTest : public testing::Test {
 protected:
  GatesTest() {
    EXPECT_TRUE(pair_.server
                    ->add("count",
                          [this](Invocation& invocation) {
                            num_called_.fetch_add(1);
                            echo(invocation);
                          })
                    .ok());
    // Its answer is gated.
    EXPECT_TRUE(pair_.server
                    ->add("later",
                          [this](Invocation& invocation) {
                            fill(invocation.answer, {}, {});
                            invocation.answer.leave_when(word_, owner());
                            invocation.reply();
                          })
                    .ok());
  }

  Owner owner() {
    return {this, [](void* self) { static_cast<GatesTest*>(self)->num_released_.fetch_add(1); }};
  }

  CallPointer start_gated(std::chrono::milliseconds timeout = 30s) {
    CallPointer call = CallPointer::adopt(*new Call);
    fill(call->request, "count", pattern(100, 1));
    call->request.leave_when(word_, owner());
    call->timeout = timeout;
    pair_.to_server->start(*call);
    return call;
  }

  std::atomic<uint32_t> word_{0};
  std::atomic<int> num_called_{0};
  std::atomic<int> num_released_{0};
  LoopbackFabric fabric_{{.largest_eager_num_bytes = 6000, .mailbox_capacity = 1 << 20}};
  TwoRuntimes pair_{loopback_transports(fabric_, 2)};
};

TEST_F(GatesTest, a_call_leaves_when_the_word_says_so) {
  const CallPointer call = start_gated();
  EXPECT_FALSE(pair_.to_server->wait(*call, Clock::now() + 50ms));
  EXPECT_EQ(num_called_.load(), 0);
  word_.store(1);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(call->status().ok()) << call->status().message();
  EXPECT_EQ(num_called_.load(), 1);
}

TEST_F(GatesTest, although_nobody_waits_for_it) {
  const CallPointer call = start_gated();
  std::this_thread::sleep_for(50ms);
  word_.store(1);
  const Clock::time_point deadline = Clock::now() + 30s;
  while (!call->released() && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(call->released());
  EXPECT_EQ(num_called_.load(), 1);
}

TEST_F(GatesTest, others_do_not_wait_for_it) {
  const CallPointer call = start_gated();
  EXPECT_TRUE(invoke(*pair_.to_server, "count", pattern(10, 2))->status().ok());
  EXPECT_FALSE(call->finished());
  word_.store(1);
  wait_for(*pair_.to_server, *call);
}

TEST_F(GatesTest, so_does_an_answer) {
  const CallPointer call = start(*pair_.to_server, "later", {});
  EXPECT_FALSE(pair_.to_server->wait(*call, Clock::now() + 50ms));
  word_.store(1);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(call->status().ok()) << call->status().message();
}

// What is gated is kept until the word is there, whatever becomes of the call.
TEST_F(GatesTest, a_call_that_does_not_leave_in_time_is_over) {
  {
    const CallPointer call = start_gated(100ms);
    ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
    EXPECT_EQ(call->status().code(), ErrorCode::kTimeout);
  }
  EXPECT_EQ(num_released_.load(), 0);
  word_.store(1);
  const Clock::time_point deadline = Clock::now() + 30s;
  while (num_released_.load() == 0 && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(num_released_.load(), 1);
  EXPECT_TRUE(invoke(*pair_.to_server, "count", pattern(10, 2))->status().ok());
  EXPECT_EQ(num_called_.load(), 1);
}

TEST_F(GatesTest, so_is_one_that_is_cancelled_or_whose_runtime_closes) {
  const CallPointer cancelled = start_gated();
  const CallPointer closed = start_gated();
  pair_.to_server->cancel(*cancelled);
  pair_.client->close();
  for (const CallPointer& call : {cancelled, closed}) ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  EXPECT_EQ(cancelled->status().code(), ErrorCode::kCancelled);
  EXPECT_EQ(closed->status().code(), ErrorCode::kAborted);
}

TEST_F(GatesTest, an_answer_whose_caller_has_gone_is_dropped) {
  const CallPointer call = start(*pair_.to_server, "later", {}, 100ms);
  ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  EXPECT_EQ(call->status().code(), ErrorCode::kTimeout);
  pair_.client->close();
  word_.store(1);
}

}  // namespace
}  // namespace axon
