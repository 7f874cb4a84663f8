// Tests what a runtime waits for before it ends, what ends with its engine, and its limits.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "comes_true.hpp"
#include "memory/host_buffer.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class EndingsTest : public testing::Test {
 protected:
  // Messages above 1,000 bytes wait at their sender.
  transport::LoopbackFabric fabric_{{.largest_eager_num_bytes = 1000, .mailbox_capacity = 1 << 20}};
};

// A call that sets the destination of its answer only when the test says so.
class HesitantCall final : public Call {
 public:
  HesitantCall() { destinations = TensorDestinations::kAsked; }
  std::atomic<bool> announced{false};

 private:
  void on_announced() noexcept override { announced.store(true); }
};

TEST_F(EndingsTest, answers_that_callers_have_not_fetched_are_waited_for) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2));
  ASSERT_TRUE(pair.server->add("echo", echo).ok());
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  const auto call = Counted<HesitantCall>::adopt(*new HesitantCall);
  fill(call->request, "echo", bytes);
  pair.to_server->start(*call);
  ASSERT_TRUE(comes_true([&] { return call->announced.load(); }));
  EXPECT_FALSE(pair.server->is_idle());
  EXPECT_FALSE(pair.client->is_idle());
  transport::Bytes memory(bytes.size());
  const Buffer buffer{memory.data(), memory.size()};
  pair.to_server->accept(*call, {&buffer, 1});
  wait_for(*pair.to_server, *call);
  EXPECT_EQ(memory, bytes);
  EXPECT_TRUE(comes_true([&] { return pair.server->is_idle() && pair.client->is_idle(); }));
}

TEST_F(EndingsTest, messages_without_an_answer_are_waited_for) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2));
  std::atomic<Invocation*> held{nullptr};
  ASSERT_TRUE(pair.server->add("hold", [&](Invocation& each) { held.store(&each); }).ok());
  const CallPointer call = CallPointer::adopt(*new Call);
  fill(call->request, "hold", transport::pattern(8, 1));
  call->answer = Call::Answer::kNone;
  pair.to_server->start(*call);
  wait_for(*pair.to_server, *call);
  ASSERT_TRUE(comes_true([&] { return held.load() != nullptr; }));
  EXPECT_FALSE(pair.client->is_idle());
  held.load()->reply();
  EXPECT_TRUE(comes_true([&] { return pair.client->is_idle(); }));
}

TEST_F(EndingsTest, what_moves_between_us_and_the_dead_is_not_waited_for) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2));
  ASSERT_TRUE(pair.server->add("echo", echo).ok());
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  const auto call = Counted<HesitantCall>::adopt(*new HesitantCall);
  fill(call->request, "echo", bytes);
  pair.to_server->start(*call);
  ASSERT_TRUE(comes_true([&] { return call->announced.load(); }));
  fabric_.kill(1);
  EXPECT_TRUE(comes_true([&] { return pair.server->is_idle(); }));
}

TEST_F(EndingsTest, calls_end_by_their_timeouts_if_a_receive_queue_is_wedged) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2));
  ASSERT_TRUE(pair.server->add("echo", echo).ok() && pair.client->add("echo", echo).ok());
  fabric_.wedge(1);
  const transport::Bytes bytes = transport::pattern(8, 1);
  EXPECT_EQ(invoke(*pair.to_server, "echo", bytes, 100ms)->status().code(), ErrorCode::kTimeout);  // without an answer
  EXPECT_EQ(invoke(*pair.to_client, "echo", bytes, 100ms)->status().code(), ErrorCode::kTimeout);  // does not arrive
}

TEST_F(EndingsTest, runtimes_are_not_kept_by_an_engine_that_is_shut_down) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2));
  ASSERT_TRUE(pair.server->add("echo", echo).ok());
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  const auto call = Counted<HesitantCall>::adopt(*new HesitantCall);  // its answer is not fetched
  fill(call->request, "echo", bytes);
  pair.to_server->start(*call);
  ASSERT_TRUE(comes_true([&] { return call->announced.load(); }));
  EXPECT_GT(pair.server.use_count(), 1);
  pair.server_engine().shut_down();
  EXPECT_TRUE(comes_true([&] { return pair.server.use_count() == 1; }));
  pair.to_server->cancel(*call);
}

TEST_F(EndingsTest, calls_beyond_those_that_may_run_are_refused) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2), {.name = "server", .max_running_calls = 2});
  std::mutex mutex;
  std::vector<Invocation*> held;
  ASSERT_TRUE(pair.server
                  ->add("hold",
                        [&](Invocation& each) {
                          const std::lock_guard lock(mutex);
                          held.push_back(&each);
                        })
                  .ok());
  ASSERT_TRUE(pair.server->add("echo", echo).ok());
  const transport::Bytes bytes = transport::pattern(8, 1);
  const CallPointer first = start(*pair.to_server, "hold", bytes);
  const CallPointer second = start(*pair.to_server, "hold", bytes);
  const CallPointer refused = invoke(*pair.to_server, "hold", bytes);
  ASSERT_EQ(refused->status().code(), ErrorCode::kRemote);
  EXPECT_EQ(refused->status().message(), "BufferError");
  ValueReader reader(refused->reply().values());
  EXPECT_EQ(reader.next().count, 2u);
  EXPECT_NE(reader.next().text().find("2 unanswered calls"), std::string_view::npos);
  std::vector<Invocation*> left;
  ASSERT_TRUE(comes_true([&] {
    const std::lock_guard lock(mutex);
    left = held;
    return left.size() == 2;
  }));
  for (Invocation* each : left) echo(*each);
  wait_for(*pair.to_server, *first);
  wait_for(*pair.to_server, *second);
  EXPECT_TRUE(invoke(*pair.to_server, "echo", bytes)->status().ok());
}

TEST_F(EndingsTest, values_beyond_the_bound_fail_by_name) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2));
  const auto answer_much = [](Invocation& each) {
    each.answer.open();
    each.answer.bytes().resize(each.answer.bytes().size() + kMostValueBytes + 1);
    each.answer.seal();
    each.reply();
  };
  ASSERT_TRUE(pair.server->add("much", answer_much).ok());
  const CallPointer call = invoke(*pair.to_server, "much", {}, 10min);  // a gigabyte takes long under a sanitizer
  EXPECT_EQ(call->status().message(), "ValueError");
  ValueReader reader(call->reply().values());
  EXPECT_EQ(reader.next().count, 2u);
  EXPECT_NE(reader.next().text().find(": 1073741825; allowed: up to 1073741824"), std::string_view::npos);
}

TEST_F(EndingsTest, memory_of_a_call_is_given_back_once_it_is_answered) {
  TwoRuntimes pair(engine::loopback_transports(fabric_, 2));
  std::atomic<const std::byte*> received{nullptr};
  const auto look = [&](Invocation& each) {
    received = each.arguments().tensors()[0].data.data;
    each.answer.open();
    each.answer.seal();
    each.reply();
  };
  ASSERT_TRUE(pair.server->add("look", look).ok());
  const std::vector<std::byte> bytes(3 << 20);
  EXPECT_TRUE(invoke(*pair.to_server, "look", bytes)->status().ok());
  EXPECT_TRUE(comes_true([&] {
    std::vector<HostBuffer> buffers;
    while (buffers.size() < 8 && (buffers.empty() || buffers.back().data() != received)) {
      buffers.push_back(HostBuffer::take(bytes.size()));
    }
    return buffers.back().data() == received;
  }));
}

TEST_F(EndingsTest, neighbours_that_are_gone_are_not_counted) {
  engine::Engines engines(engine::loopback_transports(fabric_, 2));
  engine::Engine& engine = engines[0];
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  engine::PeerAddress peer_address = engines[1].make_address().address();
  peer_address.pid = child;
  const auto count = [&] { return engine.exclusively([&] { return engine.peers().num_neighbours(); }); };
  ASSERT_TRUE(engine.exclusively([&] { return engine.meet(peer_address); }).ok());
  EXPECT_EQ(count(), 1);
  kill(child, SIGKILL);
  EXPECT_TRUE(comes_true([&] { return count() == 0; }));
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace axon::rpc
