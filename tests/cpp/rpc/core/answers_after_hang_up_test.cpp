// Messages that a peer sent before its end count, although the notice of that end travels another way, and is faster.
#include <gtest/gtest.h>

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "comes_true.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

// A server that answers when the test says so.
struct HeldCall {
  explicit HeldCall(transport::FaultPlan plan = {}) : fabric(std::move(plan)) {
    EXPECT_TRUE(pair.server->add("hold", [this](Invocation& each) { held.store(&each); }).ok());
  }

  CallPointer call(std::span<const std::byte> bytes) {
    CallPointer call = start(*pair.to_server, "hold", bytes, 24h);
    EXPECT_TRUE(comes_true([&] { return held.load() != nullptr; }));
    return call;
  }
  void answer() { echo(*held.load()); }

  void expect_answered(Call& call, std::span<const std::byte> bytes) {
    wait_for(*pair.to_server, call);
    ASSERT_TRUE(call.status().ok()) << call.status().message();
    EXPECT_EQ(content(call.reply()), transport::Bytes(bytes.begin(), bytes.end()));
  }

  // Does what the client's engine does, at another time.
  void tick(Clock::time_point now) {
    pair.client_engine().exclusively([&] { EXPECT_TRUE(static_cast<engine::Client&>(*pair.client).tick(now)); });
  }

  std::atomic<Invocation*> held{nullptr};
  transport::LoopbackFabric fabric;
  TwoRuntimes pair{engine::loopback_transports(fabric, 2)};
};

TEST(AnswersAfterHangUpTest, an_answer_may_come_after_its_sender_s_socket_has_hung_up) {
  HeldCall held_call;
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  FileDescriptor servers(ends[1]);
  held_call.pair.meet(FileDescriptor(ends[0]));
  const transport::Bytes bytes = transport::pattern(100, 1);
  const CallPointer call = held_call.call(bytes);
  servers = FileDescriptor();
  // Later than the engine's own checks, of which none follow.
  const Clock::time_point later = Clock::now() + 1h;
  held_call.tick(later);
  EXPECT_TRUE(held_call.pair.to_server->failure().ok());
  held_call.answer();
  held_call.expect_answered(*call, bytes);
  held_call.tick(later + 1s);
  EXPECT_EQ(held_call.pair.to_server->failure().message(), "'server' is gone: its socket was closed");
}

// The number of bytes, and which message is held back. Calls and answers are one message each, or two above 4 KiB.
struct Overtaken {
  size_t num_bytes;
  uint64_t send;
};

class OvertakenTest : public testing::TestWithParam<Overtaken> {};

INSTANTIATE_TEST_SUITE_P(Answers, OvertakenTest,
                         testing::Values(Overtaken{100, 2}, Overtaken{5'000, 3}, Overtaken{5'000, 4},
                                         Overtaken{100'000, 3}, Overtaken{100'000, 4}),
                         [](const auto& info) {
                           return std::to_string(info.param.num_bytes) + "_bytes_" + std::to_string(info.param.send);
                         });

TEST_P(OvertakenTest, an_answer_may_arrive_after_the_message_that_the_connection_ends) {
  HeldCall held_call({.largest_eager_num_bytes = 10'000, .holds = {{.send = GetParam().send, .num_rounds = 100'000}}});
  const transport::Bytes bytes = transport::pattern(GetParam().num_bytes, 1);
  const CallPointer call = held_call.call(bytes);
  held_call.pair.to_client->close(Clock::now() + 60s);
  std::thread looks([&] {  // without a pause: the notice leaves right after the answer
    EXPECT_TRUE(comes_true([&] { return held_call.pair.to_client->await_end(Clock::now()); }));
  });
  held_call.answer();
  held_call.expect_answered(*call, bytes);
  looks.join();
  EXPECT_TRUE(held_call.pair.to_client->has_drained());
  EXPECT_TRUE(held_call.pair.to_server->await_end(Clock::now() + 30s));
  EXPECT_EQ(held_call.pair.to_server->failure().message(), "'server' has closed the connection");
}

}  // namespace
}  // namespace axon::rpc
