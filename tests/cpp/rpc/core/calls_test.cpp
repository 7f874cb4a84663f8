// Calls between two runtimes, in memory with faults and over UCX: answers equal the arguments, whatever their size.
#include <gtest/gtest.h>

#include <random>

#include "rpc/core/runtimes.hpp"
#include "transport/networks.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class CallsTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  static std::vector<std::unique_ptr<transport::Transport>> transports(transport::Network& network) {
    std::vector<std::unique_ptr<transport::Transport>> made;
    for (int i = 0; i < 2; ++i) made.push_back(network.make_transport());
    return made;
  }

  std::mutex mutex_;  // guards the following members, for functions of the server: valid until the server is destroyed
  std::vector<Invocation*> held_;
  std::unique_ptr<transport::Network> network_ = GetParam().make();
  TwoRuntimes pair_{transports(*network_)};
};

INSTANTIATE_TEST_SUITE_P(Networks, CallsTest,
                         testing::Values(transport::kLoopback, transport::kLoopbackWithFaults,
                                         transport::kUcxSharedMemory, transport::kUcxTcp),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CallsTest, any_size_comes_back) {
  ASSERT_TRUE(pair_.server->add("echo", echo).ok());
  for (const size_t size : {0u, 1u, 8u, 64u, 4096u, 4097u, 8000u, 65'536u, 65'537u, 1u << 20, 5'000'001u}) {
    const transport::Bytes bytes = transport::pattern(size, size);
    const CallPointer call = invoke(*pair_.to_server, "echo", bytes);
    ASSERT_TRUE(call->status().ok()) << call->status().message();
    EXPECT_EQ(content(call->reply()), bytes) << size << " bytes";
  }
}

// A call that sets the destination of its answer.
class AskedCall final : public Call {
 public:
  explicit AskedCall(Connection& connection) : connection_(connection) { destinations = TensorDestinations::kAsked; }
  std::vector<transport::Bytes> memory;

 private:
  void on_announced() noexcept override {
    std::vector<Buffer> buffers;
    for (const Inbound::Tensor& tensor : reply().tensors()) {
      transport::Bytes& bytes = memory.emplace_back(tensor.data.num_bytes);
      buffers.push_back({bytes.data(), bytes.size()});
    }
    connection_.accept(*this, buffers);
  }

  Connection& connection_;
};

TEST_P(CallsTest, answers_land_where_they_are_asked_to) {
  ASSERT_TRUE(pair_.server->add("echo", echo).ok());
  for (const size_t size : {5000u, 70'000u, 1u << 20}) {
    const transport::Bytes bytes = transport::pattern(size, size);
    const auto call = Counted<AskedCall>::adopt(*new AskedCall(*pair_.to_server));
    fill(call->request, "echo", bytes);
    pair_.to_server->start(*call);
    wait_for(*pair_.to_server, *call);
    ASSERT_TRUE(call->status().ok()) << call->status().message();
    ASSERT_EQ(call->memory.size(), 1u);
    EXPECT_EQ(call->memory[0], bytes);
    EXPECT_EQ(call->reply().tensors()[0].data.data, call->memory[0].data());
  }
}

TEST_P(CallsTest, both_ends_call_each_other) {
  ASSERT_TRUE(pair_.server->add("echo", echo).ok());
  ASSERT_TRUE(pair_.client->add("echo", echo).ok());
  const transport::Bytes bytes = transport::pattern(100, 1);
  EXPECT_EQ(content(invoke(*pair_.to_client, "echo", bytes)->reply()), bytes);
  EXPECT_EQ(content(invoke(*pair_.to_server, "echo", bytes)->reply()), bytes);
}

TEST_P(CallsTest, more_calls_than_slots_are_all_answered) {
  ASSERT_TRUE(pair_.server->add("echo", echo).ok());
  std::vector<CallPointer> calls;
  std::vector<transport::Bytes> sent;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 3000; ++i) {
    sent.push_back(transport::pattern(i % 100 == 0 ? random() % 200'000 : random() % 300, static_cast<uint64_t>(i)));
    calls.push_back(start(*pair_.to_server, "echo", sent.back()));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    wait_for(*pair_.to_server, *calls[i]);
    ASSERT_TRUE(calls[i]->status().ok()) << calls[i]->status().message();
    ASSERT_EQ(content(calls[i]->reply()), sent[i]);
  }
}

TEST_P(CallsTest, answers_come_in_any_order) {
  ASSERT_TRUE(pair_.server
                  ->add("hold",
                        [&](Invocation& invocation) {
                          const std::lock_guard lock(mutex_);
                          held_.push_back(&invocation);
                          if (held_.size() < 10) return;
                          while (!held_.empty()) {
                            echo(*held_.back());
                            held_.pop_back();
                          }
                        })
                  .ok());
  std::vector<CallPointer> calls;
  for (int i = 0; i < 10; ++i)
    calls.push_back(start(*pair_.to_server, "hold", transport::pattern(8, static_cast<uint64_t>(i))));
  for (int i = 0; i < 10; ++i) {
    wait_for(*pair_.to_server, *calls[static_cast<size_t>(i)]);
    EXPECT_EQ(content(calls[static_cast<size_t>(i)]->reply()), transport::pattern(8, static_cast<uint64_t>(i)));
  }
}

TEST_P(CallsTest, functions_that_fail_or_are_not_there_say_so) {
  ASSERT_TRUE(pair_.server->add("fails", [](Invocation& each) { each.fail("ValueError", "not today"); }).ok());
  for (const auto& [name, error, text] : {std::tuple{"fails", "ValueError", "not today"},
                                          std::tuple{"absent", "LookupError", "has no function 'absent'"}}) {
    const CallPointer call = invoke(*pair_.to_server, name, transport::pattern(100'000, 1));
    ASSERT_FALSE(call->status().ok());
    EXPECT_EQ(call->status().code(), ErrorCode::kRemote);
    EXPECT_EQ(call->status().message(), error);
    ValueReader reader(call->reply().values());
    EXPECT_EQ(reader.next().count, 2u);
    EXPECT_NE(reader.next().text().find(text), std::string_view::npos);
  }
}

TEST_P(CallsTest, one_way_calls_run_without_an_answer) {
  std::atomic<int> num_told{0};
  ASSERT_TRUE(pair_.server
                  ->add("tell",
                        [&](Invocation& invocation) {
                          EXPECT_FALSE(invocation.wants_answer());
                          num_told.fetch_add(1);
                          echo(invocation);
                        })
                  .ok());
  std::vector<transport::Bytes> sent;
  std::vector<CallPointer> calls;
  for (int i = 0; i < 2000; ++i) {
    CallPointer call = CallPointer::adopt(*new Call);
    sent.push_back(transport::pattern(i % 10 == 0 ? 100'000 : 50, static_cast<uint64_t>(i)));
    fill(call->request, "tell", sent.back());
    call->answer = Call::Answer::kNone;
    pair_.to_server->start(*call);
    calls.push_back(std::move(call));
  }
  for (const CallPointer& call : calls) {
    wait_for(*pair_.to_server, *call);
    EXPECT_TRUE(call->status().ok());
  }
  const Clock::time_point deadline = Clock::now() + 30s;
  while (num_told.load() < 2000 && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(num_told.load(), 2000);
}

TEST_P(CallsTest, unanswered_calls_end_in_time_and_their_slots_are_kept) {
  std::atomic<Invocation*> held{nullptr};
  std::atomic<bool> cancelled{false};
  pair_.server->set_on_cancelled([&](uint64_t serial) {
    EXPECT_EQ(serial, held.load()->serial());
    cancelled.store(true);
  });
  ASSERT_TRUE(pair_.server->add("hold", [&](Invocation& invocation) { held.store(&invocation); }).ok());
  ASSERT_TRUE(pair_.server->add("echo", echo).ok());
  const CallPointer late = invoke(*pair_.to_server, "hold", transport::pattern(8, 1), 50ms);
  ASSERT_FALSE(late->status().ok());
  EXPECT_EQ(late->status().code(), ErrorCode::kTimeout);
  EXPECT_NE(late->status().message().find("'server' has not answered 'hold' within 50 ms"), std::string::npos);
  const Clock::time_point deadline = Clock::now() + 30s;
  while (!cancelled.load() && Clock::now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(cancelled.load());
  EXPECT_TRUE(held.load()->is_cancelled());
  echo(*held.load());  // its caller no longer waits
  EXPECT_TRUE(invoke(*pair_.to_server, "echo", transport::pattern(8, 2))->status().ok());
}

TEST_P(CallsTest, cancelled_calls_end_at_once) {
  std::atomic<Invocation*> held{nullptr};
  ASSERT_TRUE(pair_.server->add("hold", [&](Invocation& invocation) { held.store(&invocation); }).ok());
  const transport::Bytes bytes = transport::pattern(100'000, 1);
  const CallPointer call = start(*pair_.to_server, "hold", bytes);
  const Clock::time_point deadline = Clock::now() + 30s;
  while (held.load() == nullptr && Clock::now() < deadline) std::this_thread::yield();
  pair_.to_server->cancel(*call);
  wait_for(*pair_.to_server, *call);
  ASSERT_FALSE(call->status().ok());
  EXPECT_EQ(call->status().code(), ErrorCode::kCancelled);
  echo(*held.load());
}

TEST_P(CallsTest, those_that_are_given_up_say_so) {
  const auto give_up = [](Invocation& each) { each.fail_as_given_up("by hand"); };
  ASSERT_TRUE(pair_.server->add("cancelled", give_up).ok());
  const CallPointer call = invoke(*pair_.to_server, "cancelled", transport::pattern(8, 1));
  ASSERT_EQ(call->status().code(), ErrorCode::kRemote);
  EXPECT_EQ(call->status().message(), "RuntimeError");
  ValueReader reader(call->reply().values());
  EXPECT_EQ(reader.next().count, 2u);
  EXPECT_EQ(reader.next().text(), "'cancelled' has been cancelled: by hand");
}

TEST_P(CallsTest, closing_ends_calls_at_both_ends) {
  std::atomic<Invocation*> held{nullptr};
  ASSERT_TRUE(pair_.server->add("hold", [&](Invocation& invocation) { held.store(&invocation); }).ok());
  const CallPointer call = start(*pair_.to_server, "hold", transport::pattern(8, 1));
  const Clock::time_point deadline = Clock::now() + 30s;
  while (held.load() == nullptr && Clock::now() < deadline) std::this_thread::yield();
  pair_.server->close();
  wait_for(*pair_.to_server, *call);
  ASSERT_FALSE(call->status().ok());
  EXPECT_EQ(call->status().code(), ErrorCode::kPeerLost);
  EXPECT_NE(call->status().message().find("'server' has closed the connection"), std::string::npos);
  echo(*held.load());  // a closed runtime accepts it
  const CallPointer later = invoke(*pair_.to_server, "hold", transport::pattern(8, 1));
  EXPECT_EQ(later->status().code(), ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace axon::rpc
