// The receiver chooses where tensors go: also those of arguments, while they arrive, and whatever happens meanwhile.
#include <gtest/gtest.h>

#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class DestinationsTest : public testing::Test {
 protected:
  DestinationsTest() {
    // Answers with the number of bytes that have landed in the given memory.
    const auto call = [this](Invocation& invocation) {
      const Buffer data = invocation.arguments().tensors()[0].data;
      EXPECT_EQ(data.data, memory_.data());
      EXPECT_EQ(invocation.arguments().tensors()[0].owner.get(), this);
      echo(invocation);
    };
    const auto ask = [this](Invocation& invocation) { asked_.store(&invocation); };
    EXPECT_TRUE(pair_.server->add("landed", call, ask).ok());
    EXPECT_TRUE(pair_.server->add("echo", echo).ok());
  }

  Invocation& await_question() {
    const Clock::time_point deadline = Clock::now() + 30s;
    while (asked_.load() == nullptr && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_NE(asked_.load(), nullptr);
    return *asked_.exchange(nullptr);
  }

  void accept(Invocation& invocation) {
    memory_.resize(invocation.arguments().tensors()[0].data.num_bytes);
    const Buffer buffer{memory_.data(), memory_.size()};
    Owner owner(this, [](void* self) { static_cast<DestinationsTest*>(self)->num_released_.fetch_add(1); });
    invocation.accept({&buffer, 1}, {&owner, 1});
  }

  void expect_released(int count) {
    const Clock::time_point deadline = Clock::now() + 30s;
    while (num_released_.load() < count && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(num_released_.load(), count);
  }

  // Messages up to 6,000 bytes travel eagerly, larger ones are fetched.
  transport::LoopbackFabric fabric_{{.largest_eager_num_bytes = 6000, .mailbox_capacity = 1 << 20}};
  transport::Bytes memory_;
  std::atomic<Invocation*> asked_{nullptr};
  std::atomic<int> num_released_{0};
  TwoRuntimes pair_{engine::loopback_transports(fabric_, 2), {.name = "server", .max_early_num_bytes = 20'000}};
};

TEST_F(DestinationsTest, arguments_land_where_their_function_says) {
  int count = 0;
  for (const size_t size : {8u, 4096u, 5000u, 1u << 20}) {  // in the header frame, in a payload frame, fetched
    const transport::Bytes bytes = transport::pattern(size, size);
    const CallPointer call = start(*pair_.to_server, "landed", bytes);
    Invocation& invocation = await_question();
    EXPECT_EQ(invocation.arguments().tensors()[0].shape[0], static_cast<int64_t>(size));
    accept(invocation);
    wait_for(*pair_.to_server, *call);
    ASSERT_TRUE(call->status().ok()) << call->status().message();
    EXPECT_EQ(content(call->reply()), bytes);
    expect_released(++count);
  }
}

TEST_F(DestinationsTest, a_buffer_of_null_leaves_it_to_the_runtime) {
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  ASSERT_TRUE(pair_.server
                  ->add("anywhere", echo,
                        [](Invocation& invocation) {
                          const Buffer anywhere;
                          invocation.accept({&anywhere, 1});
                        })
                  .ok());
  EXPECT_EQ(content(invoke(*pair_.to_server, "anywhere", bytes)->reply()), bytes);
}

TEST_F(DestinationsTest, a_function_may_refuse_what_is_announced) {
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  const CallPointer call = start(*pair_.to_server, "landed", bytes);
  await_question().fail("MemoryError", "full");
  wait_for(*pair_.to_server, *call);
  EXPECT_EQ(call->status().message(), "MemoryError");
  EXPECT_EQ(content(invoke(*pair_.to_server, "echo", bytes)->reply()), bytes);
}

TEST_F(DestinationsTest, a_function_cancelled_while_it_is_asked_is_not_called) {
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  const CallPointer call = start(*pair_.to_server, "landed", bytes);
  Invocation& invocation = await_question();
  pair_.to_server->cancel(*call);
  ASSERT_TRUE(pair_.to_server->wait(*call, Clock::now() + 30s));
  EXPECT_EQ(call->status().code(), ErrorCode::kCancelled);
  invoke(*pair_.to_server, "echo", bytes);  // the cancellation has arrived by then
  accept(invocation);
  expect_released(1);
  wait_for(*pair_.to_server, *call);
  EXPECT_EQ(content(invoke(*pair_.to_server, "echo", bytes)->reply()), bytes);
}

TEST_F(DestinationsTest, a_function_whose_caller_is_lost_while_it_is_asked_is_not_called) {
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  start(*pair_.to_server, "landed", bytes);
  Invocation& invocation = await_question();
  pair_.client->close();
  const Clock::time_point deadline = Clock::now() + 30s;
  while (pair_.to_client->failure().ok() && Clock::now() < deadline) std::this_thread::yield();
  accept(invocation);
  expect_released(1);
  EXPECT_TRUE(pair_.server->is_idle());
}

TEST_F(DestinationsTest, payload_frames_that_wait_are_bounded_in_bytes) {
  std::vector<CallPointer> calls;
  const transport::Bytes bytes = transport::pattern(5000, 1);  // arrives eagerly, in a payload frame
  std::vector<Invocation*> asked;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(start(*pair_.to_server, "landed", bytes));
    asked.push_back(&await_question());
  }
  invoke(*pair_.to_server, "echo", transport::pattern(8, 1));  // all payload frames have arrived by then
  for (Invocation* each : asked) {
    accept(*each);
    expect_released(num_released_.load());
  }
  int num_refused = 0;
  for (const CallPointer& call : calls) {
    wait_for(*pair_.to_server, *call);
    if (call->status().ok()) continue;
    ++num_refused;
    ValueReader reader(call->reply().values());
    EXPECT_EQ(reader.next().count, 2u);
    EXPECT_NE(reader.next().text().find("payload frames that arrived before their destination was known"),
              std::string_view::npos);
  }
  EXPECT_EQ(num_refused, 1);
}

TEST_F(DestinationsTest, answers_may_be_declined) {
  class DecliningCall final : public Call {
   public:
    explicit DecliningCall(Connection& connection) : connection_(connection) {
      destinations = TensorDestinations::kAsked;
    }

   private:
    void on_announced() noexcept override {
      connection_.decline(*this, Status(ErrorCode::kInvalidArgument, "no place"));
    }
    Connection& connection_;
  };
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  for (int i = 0; i < 3; ++i) {
    const auto call = Counted<DecliningCall>::adopt(*new DecliningCall(*pair_.to_server));
    fill(call->request, "echo", bytes);
    pair_.to_server->start(*call);
    wait_for(*pair_.to_server, *call);
    EXPECT_EQ(call->status().message(), "no place");
  }
  EXPECT_EQ(content(invoke(*pair_.to_server, "echo", bytes)->reply()), bytes);
}

}  // namespace
}  // namespace axon::rpc
