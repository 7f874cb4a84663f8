// Tensors that stay with their sender: the receiver learns where they are, and the sender when they were read.
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"
#include "transport/rings/rings.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

constexpr size_t kNumBytes = 1'000'000;

// "take" keeps the exposure of its arguments and answers at once; "expose" answers with an exposed tensor.
class ZeroCopyGetTest : public testing::TestWithParam<std::string> {
 protected:
  ZeroCopyGetTest() {
    EXPECT_TRUE(pair_.server
                    ->add("take",
                          [this](Invocation& invocation) {
                            {
                              const std::lock_guard lock(mutex_);
                              took_.push_back(take(invocation.arguments()));
                            }
                            echo_nothing(invocation);
                          })
                    .ok());
    EXPECT_TRUE(pair_.server
                    ->add("expose",
                          [this](Invocation& invocation) {
                            invocation.answer.open();
                            expose(invocation.answer);
                            invocation.reply();
                          })
                    .ok());
  }

  static std::vector<std::unique_ptr<transport::Transport>> transports(transport::LoopbackFabric& fabric) {
    if (GetParam() == "loopback") return engine::loopback_transports(fabric, 2);
    std::vector<std::unique_ptr<transport::Transport>> transports = engine::ucx_transports(2);
    if (GetParam() == "ucx") return transports;
    for (std::unique_ptr<transport::Transport>& transport : transports) transport = with_rings(std::move(transport));
    return transports;
  }

  static void echo_nothing(Invocation& invocation) {
    invocation.answer.open();
    ValueWriter(invocation.answer.bytes()).nothing();
    invocation.answer.seal();
    invocation.reply();
  }

  // Writes the tensor's elements, and the size that it would have.
  void expose(Outbound& outbound) {
    static const int64_t kShape[] = {kNumBytes};
    Owner owner(this, [](void* self) { static_cast<ZeroCopyGetTest*>(self)->num_released_.fetch_add(1); });
    const size_t index = outbound.expose(
        {.dtype = static_cast<uint8_t>(DataType::kUint8), .shape = kShape, .data = {nullptr, kNumBytes}},
        memory_handle(), std::move(owner));
    ValueWriter(outbound.bytes()).tensor(index);
    outbound.seal();
  }

  static MemoryHandle memory_handle() {
    MemoryHandle handle;
    std::memcpy(handle.data(), "somewhere on a GPU of the sender", handle.size());
    return handle;
  }

  static Exposure take(Inbound& inbound) {
    Inbound::Tensor& tensor = inbound.tensors()[0];
    EXPECT_EQ(tensor.location, TensorLocation::kExposed);
    EXPECT_EQ(tensor.data.num_bytes, kNumBytes);
    EXPECT_EQ(tensor.memory_handle, memory_handle());
    return std::move(tensor.exposure);
  }

  CallPointer start(const char* function) {
    CallPointer call = CallPointer::adopt(*new Call);
    call->request.open(function);
    if (std::string_view(function) == "take") {
      expose(call->request);
    } else {
      call->request.seal();
    }
    pair_.to_server->start(*call);
    return call;
  }

  void wait_until_taken(Call& call) {
    ASSERT_TRUE(pair_.to_server->wait(call, Clock::now() + 30s));
    ASSERT_TRUE(call.status().ok()) << call.status().message();
  }

  // Loses the one peer of this engine.
  static void lose_the_other(engine::Engine& engine) {
    engine.exclusively([&] { engine.messenger().on_peer_lost(0, Status(ErrorCode::kPeerLost, "as the test has it")); });
    engine.wake();
  }

  void give_back() {
    const std::lock_guard lock(mutex_);
    took_.clear();
  }

  bool is_released_within(Clock::duration timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    while (num_released_.load() == 0 && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
    return num_released_.load() != 0;
  }

  transport::LoopbackFabric fabric_{{.largest_eager_num_bytes = 6000, .mailbox_capacity = 1 << 20}};
  std::atomic<int> num_released_{0};
  std::mutex mutex_;
  std::vector<Exposure> took_;  // guarded by mutex_
  Invocation* held_ = nullptr;  // guarded by mutex_
  TwoRuntimes pair_{
      transports(fabric_), {.name = "server", .accepts_exposed = true}, {.name = "client", .accepts_exposed = true}};
};

TEST_P(ZeroCopyGetTest, a_call_that_awaits_acks_is_finished_once_they_are_here) {
  const CallPointer call = CallPointer::adopt(*new Call);
  call->awaits_acks = true;
  call->request.open("take");
  expose(call->request);
  pair_.to_server->start(*call);
  const CallPointer next = start("take");
  wait_until_taken(*next);  // the answer of the first one has arrived before
  EXPECT_FALSE(call->finished());
  give_back();
  wait_until_taken(*call);
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, arguments_are_their_senders_again_once_they_have_been_read) {
  const CallPointer call = start("take");
  ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  ASSERT_TRUE(call->status().ok()) << call->status().message();
  EXPECT_FALSE(is_released_within(50ms));
  EXPECT_FALSE(call->released());
  give_back();
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, so_are_answers) {
  const CallPointer call = start("expose");
  wait_for(*pair_.to_server, *call);
  ASSERT_TRUE(call->status().ok()) << call->status().message();
  EXPECT_FALSE(is_released_within(50ms));
  {
    const Exposure exposure = take(call->reply());
  }
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, an_answer_that_is_not_read_is_given_back_with_its_call) {
  {
    const CallPointer call = start("expose");
    wait_for(*pair_.to_server, *call);
  }
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, arguments_that_are_not_taken_are_given_back) {
  ASSERT_TRUE(pair_.server->add("ignore", echo_nothing).ok());
  const CallPointer call = CallPointer::adopt(*new Call);
  call->request.open("ignore");
  expose(call->request);
  pair_.to_server->start(*call);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, so_are_those_of_a_function_that_is_not_there) {
  const CallPointer call = CallPointer::adopt(*new Call);
  call->request.open("nothing");
  expose(call->request);
  pair_.to_server->start(*call);
  wait_for(*pair_.to_server, *call);
  EXPECT_EQ(call->status().code(), ErrorCode::kRemote);
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, an_exposure_outlives_its_runtime) {
  const CallPointer call = start("take");
  ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  pair_.server->close();
  EXPECT_FALSE(is_released_within(50ms));
  give_back();
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, and_its_connection) {
  const CallPointer call = start("take");
  wait_until_taken(*call);
  for (Connection* connection : {pair_.to_client.get(), pair_.to_server.get()}) {
    connection->close(Clock::now());
    EXPECT_TRUE(connection->await_end(Clock::now() + 30s));
  }
  EXPECT_FALSE(is_released_within(50ms));
  give_back();
  EXPECT_TRUE(is_released_within(30s));
}

TEST_P(ZeroCopyGetTest, and_a_call_that_is_given_up) {
  ASSERT_TRUE(pair_.server
                  ->add("keep",
                        [this](Invocation& invocation) {
                          const std::lock_guard lock(mutex_);
                          took_.push_back(take(invocation.arguments()));
                          held_ = &invocation;
                        })
                  .ok());
  const CallPointer call = CallPointer::adopt(*new Call);
  call->request.open("keep");
  expose(call->request);
  pair_.to_server->start(*call);
  const auto is_held = [&] {
    const std::lock_guard lock(mutex_);
    return held_ != nullptr;
  };
  while (!is_held()) std::this_thread::yield();
  pair_.to_server->cancel(*call);
  ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  EXPECT_EQ(call->status().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(is_released_within(50ms));
  echo_nothing(*held_);
  EXPECT_FALSE(is_released_within(50ms));
  give_back();
  EXPECT_TRUE(is_released_within(30s));
}

// A lost reader reads nothing any more. A reader that only seems to be lost, and returns the exposure, does no harm.
TEST_P(ZeroCopyGetTest, what_is_exposed_is_revoked_when_the_reader_dies) {
  if (GetParam() == "loopback") GTEST_SKIP() << "transfers with its dead are never told done";
  const CallPointer call = start("take");
  wait_until_taken(*call);
  lose_the_other(pair_.client_engine());
  EXPECT_TRUE(is_released_within(30s));
  wait_for(*pair_.to_server, *call);
  give_back();
}

TEST_P(ZeroCopyGetTest, an_exposure_of_a_dead_peer_may_be_acknowledged) {
  const CallPointer call = start("take");
  wait_until_taken(*call);
  lose_the_other(pair_.server_engine());
  give_back();
  EXPECT_EQ(pair_.to_client->failure().code(), ErrorCode::kPeerLost);
}

INSTANTIATE_TEST_SUITE_P(Over, ZeroCopyGetTest, testing::Values("loopback", "ucx", "rings"),
                         [](const auto& info) { return info.param; });

TEST(ZeroCopyGet, is_refused_by_a_process_that_does_not_accept_it) {
  transport::LoopbackFabric fabric{{.largest_eager_num_bytes = 6000, .mailbox_capacity = 1 << 20}};
  TwoRuntimes pair(engine::loopback_transports(fabric, 2));
  ASSERT_TRUE(pair.server->add("echo", echo).ok());
  std::atomic<int> num_released = 0;
  const CallPointer call = CallPointer::adopt(*new Call);
  call->request.open("echo");
  static const int64_t kShape[] = {8};
  call->request.expose({.dtype = static_cast<uint8_t>(DataType::kUint8), .shape = kShape, .data = {nullptr, 8}}, {},
                       Owner(&num_released, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }));
  call->request.seal();
  pair.to_server->start(*call);
  wait_for(*pair.to_server, *call);
  EXPECT_EQ(call->status().code(), ErrorCode::kRemote);
  EXPECT_EQ(num_released.load(), 1);
}

}  // namespace
}  // namespace axon::rpc
