// The C++ library, through its users' interface.
#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

static_assert(data_type_of<bool>() == DataType::kBool);
static_assert(data_type_of<int8_t>() == DataType::kInt8);
static_assert(data_type_of<uint16_t>() == DataType::kUint16);
static_assert(data_type_of<int32_t>() == DataType::kInt32);
static_assert(data_type_of<uint64_t>() == DataType::kUint64);
static_assert(data_type_of<float>() == DataType::kFloat32);
static_assert(data_type_of<double>() == DataType::kFloat64);

void run(Call& call) {
  call.start();
  ASSERT_TRUE(call.wait(10s));
}

TEST(Library, values_and_tensors_there_and_back) {
  ConnectedPair pair;
  ASSERT_TRUE(pair.server
                  .add("describe",
                       [](Invocation& invocation) {
                         rpc::ValueReader values = invocation.arguments().values();
                         EXPECT_EQ(values.next().count, 3u);
                         const int64_t number = values.next().integer;
                         const std::string text(values.next().text());
                         const Tensor tensor = invocation.arguments().tensor(values.next().count);
                         EXPECT_EQ(invocation.function(), "describe");
                         EXPECT_EQ(invocation.caller().name(), "client");
                         Message answer = invocation.answer();
                         answer.array(2);
                         answer.text(text + std::to_string(number));
                         answer.tensor({.type = tensor.type, .shape = tensor.shape, .data = tensor.data});
                         invocation.reply();
                       })
                  .ok());
  for (const size_t num_elements : {0, 3, 1000, 100'000}) {  // in the header frame, and in payload frames
    std::vector<int32_t> numbers(num_elements);
    std::iota(numbers.begin(), numbers.end(), 7);
    Call call(pair.to_server, "describe");
    Message request = call.request();
    request.array(3);
    request.integer(42);
    request.text("the answer: ");
    request.tensor(std::span<const int32_t>(numbers));
    run(call);
    ASSERT_TRUE(call.status().ok()) << call.status().message();
    rpc::ValueReader values = call.reply().values();
    EXPECT_EQ(values.next().count, 2u);
    EXPECT_EQ(values.next().text(), "the answer: 42");
    const Tensor tensor = call.reply().tensor(values.next().count);
    EXPECT_EQ(tensor.type, DataType::kInt32);
    ASSERT_EQ(tensor.as<int32_t>().size(), num_elements);
    EXPECT_TRUE(std::ranges::equal(tensor.as<int32_t>(), numbers));
  }
}

TEST(Library, arguments_are_found_by_place_and_by_name) {
  ConnectedPair pair;
  const auto check = [](Invocation& invocation) {
    const Received arguments = invocation.arguments();
    EXPECT_EQ(arguments.argument(1).next().text(), "second");
    EXPECT_EQ(arguments.argument(2).next().kind, rpc::Value::Kind::kBroken);
    EXPECT_EQ(arguments.argument("first").next().kind, rpc::Value::Kind::kBroken);
    invocation.reply();
  };
  ASSERT_TRUE(pair.server.add("check", check).ok());
  Call call(pair.to_server, "check");
  call.request().array(2);
  call.request().array(2);
  call.request().array(1);  // the first one
  call.request().text("first");
  call.request().text("second");
  call.request().nothing();
  run(call);
  EXPECT_TRUE(call.status().ok());

  const auto expect_none = [](Invocation& invocation) {
    EXPECT_EQ(invocation.arguments().argument(0).next().kind, rpc::Value::Kind::kBroken);
    EXPECT_EQ(invocation.arguments().argument("any").next().kind, rpc::Value::Kind::kBroken);
    invocation.reply();
  };
  ASSERT_TRUE(pair.server.add("expect_none", expect_none).ok());
  for (const bool is_empty : {true, false}) {
    call.open(pair.to_server, "expect_none");
    if (!is_empty) call.request().integer(7);
    run(call);
    EXPECT_TRUE(call.status().ok());
  }
}

TEST(Library, what_has_been_taken_outlives_the_runtimes) {
  for (const size_t num_bytes : {100, 100'000}) {
    HostBuffer kept;
    {
      ConnectedPair pair;
      ASSERT_TRUE(pair.server.add("echo", echo).ok());
      const std::vector<uint8_t> bytes(num_bytes, 0x5A);
      Call call(pair.to_server, "echo");
      call.request().tensor(std::span<const uint8_t>(bytes));
      run(call);
      ASSERT_TRUE(call.status().ok()) << call.status().message();
      kept = call.reply().take(0);
      EXPECT_FALSE(call.reply().take(1));
    }
    ASSERT_TRUE(kept);
    EXPECT_TRUE(
        std::all_of(kept.data(), kept.data() + num_bytes, [](std::byte byte) { return byte == std::byte{0x5A}; }));
  }
}

TEST(Library, an_answer_keeps_its_owner_until_it_has_left) {
  ConnectedPair pair;
  const auto data = std::make_shared<std::vector<float>>(100'000, 1.5F);
  ASSERT_TRUE(pair.server
                  .add("get",
                       [&](Invocation& invocation) {
                         invocation.answer().tensor(std::span<const float>(*data), Owner::of(data));
                         invocation.reply();
                       })
                  .ok());
  Call call(pair.to_server, "get");
  run(call);
  EXPECT_EQ(call.reply().tensor(0).as<float>().back(), 1.5F);
  pair.server.drain(10s);
  EXPECT_EQ(data.use_count(), 1);
}

TEST(Library, failures_say_what_the_function_has_said) {
  ConnectedPair pair;
  ASSERT_TRUE(
      pair.server.add("fail", [](Invocation& invocation) { invocation.fail("ValueError", "not like that"); }).ok());
  ASSERT_TRUE(pair.server.add("throw", [](Invocation&) { throw std::runtime_error("thrown"); }).ok());
  ASSERT_TRUE(pair.server.add("forget", [](Invocation&) {}).ok());
  EXPECT_FALSE(pair.server.add("forget", [](Invocation&) {}).ok());
  const auto failure_of = [&](std::string_view function) {
    Call call(pair.to_server, function);
    run(call);
    EXPECT_EQ(call.status().code(), ErrorCode::kRemote);
    return call.status().message() + ": " + std::string(call.failure());
  };
  Call call(pair.to_server, "fail");
  run(call);
  EXPECT_EQ(call.traceback(), "");
  EXPECT_EQ(failure_of("fail"), "ValueError: not like that");
  EXPECT_EQ(failure_of("throw"), "RuntimeError: thrown");
  EXPECT_EQ(failure_of("forget"), "RuntimeError: the function ended without an answer");
  EXPECT_EQ(failure_of("absent"), "LookupError: the runtime 'server' has no function 'absent'");
  EXPECT_EQ(failure_of(std::string(256, 'x')), "LookupError: the runtime 'server' has no function ''");
}

TEST(Library, names_of_its_own_functions_are_not_given_away) {
  Runtime runtime = ConnectedPair::opened("server");
  const Status added = runtime.add("axon.mine", echo);
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.message(), "add: name is 'axon.mine'; names that begin with 'axon.' are reserved");
  EXPECT_FALSE(runtime.add_generator("axon.mine", [](Received) { return Generator(); }).ok());
  EXPECT_TRUE(runtime.add("axons", echo).ok());
}

TEST(Library, a_runtime_counts_connections_and_what_is_left) {
  Runtime server = ConnectedPair::opened("server");
  Runtime client = ConnectedPair::opened("client");
  EXPECT_FALSE(server.counts().has_value());
  const uint16_t port = server.listen("127.0.0.1", 0, "sixteen bytes of it").value();
  EXPECT_FALSE(client.connect("127.0.0.1", port, "sixteen other bytes", 10s).ok());
  while (server.counts()->num_wrong_secret == 0) std::this_thread::yield();
  EXPECT_EQ(client.num_connections(), 0u);
  Peer peer = client.connect("127.0.0.1", port, "sixteen bytes of it", 10s).value();
  EXPECT_EQ(server.counts()->num_met, 1u);
  EXPECT_EQ(server.counts()->num_wrong_secret, 1u);
  EXPECT_EQ(client.num_connections(), 1u);
  EXPECT_EQ(server.num_connections(), 1u);
  peer.close();
  while (client.num_connections() + server.num_connections() > 0) std::this_thread::yield();
}

TEST(Library, connecting_again_returns_the_same_peer_while_it_lives) {
  static constexpr const char* kSecret = "sixteen bytes of it";
  Runtime server = ConnectedPair::opened("server");
  Runtime client = ConnectedPair::opened("client");
  const uint16_t port = server.listen("127.0.0.1", 0, kSecret).value();
  const std::vector<std::byte> address = server.address().value();
  std::vector<std::thread> threads;
  std::vector<std::optional<Peer>> peers(8);
  for (size_t i = 0; i < peers.size(); ++i) {
    threads.emplace_back([&, i] {
      Result<Peer> met = i % 2 == 0 ? client.connect(address, 30s) : client.connect("localhost", port, kSecret, 30s);
      if (met.ok()) peers[i] = std::move(met).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(peers[0]);
  for (const std::optional<Peer>& peer : peers) EXPECT_TRUE(peer == peers[0]);
  EXPECT_EQ(client.num_connections(), 1u);
  EXPECT_EQ(server.counts()->num_met, 1u);
  peers[0]->close();
  const Peer another = client.connect(address, 30s).value();
  EXPECT_FALSE(another == *peers[0]);
  EXPECT_TRUE(another.failure().ok());
  EXPECT_EQ(another.incarnation(), server.incarnation());
  EXPECT_FALSE(server.connect(address, 30s).value() == another);  // the server's own peer
}

TEST(Library, connect_waits_for_a_server_that_is_about_to_start) {
  static constexpr const char* kSecret = "sixteen bytes of it";
  Runtime client = ConnectedPair::opened("client");
  uint16_t port = 0;
  {
    Runtime earlier = ConnectedPair::opened("earlier");
    port = earlier.listen("127.0.0.1", 0, kSecret).value();
  }
  const Result<Peer> absent = client.connect("127.0.0.1", port, kSecret, 10s);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), ErrorCode::kTransport) << absent.status().message();
  const Result<Peer> still_absent = client.connect("127.0.0.1", port, kSecret, 10s, 50ms);
  ASSERT_FALSE(still_absent.ok());
  EXPECT_EQ(still_absent.status().code(), ErrorCode::kTransport);
  EXPECT_NE(still_absent.status().message().find(", within wait=50 ms)"), std::string::npos)
      << still_absent.status().message();
  Runtime server = ConnectedPair::opened("server");
  std::thread starting([&] { EXPECT_TRUE(server.listen("127.0.0.1", port, kSecret).ok()); });
  const Result<Peer> met = client.connect("127.0.0.1", port, kSecret, 10s, 30s);
  starting.join();
  ASSERT_TRUE(met.ok()) << met.status().message();
  EXPECT_EQ(met.value().name(), "server");
  const auto began = std::chrono::steady_clock::now();
  const Result<Peer> wrong = client.connect("127.0.0.1", port, "sixteen other bytes", 10s, 1h);
  EXPECT_EQ(wrong.status().code(), ErrorCode::kUnauthenticated);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10min);
}

TEST(Library, a_server_stays_awake_for_its_spin_budget) {
  Runtime runtime = ConnectedPair::opened("server");
  const auto cpu_time = [&](std::chrono::milliseconds awake) {
    const auto now = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    };
    const auto began = now();
    EXPECT_FALSE(runtime.serve(200ms, awake));
    return now() - began;
  };
  const auto stays_awake = [&] { return cpu_time(std::chrono::milliseconds::max()) > 10 * Runtime::kAwake; };
  const auto sleeps = [&] { return cpu_time(0ms) < Runtime::kAwake; };
  for (int i = 0; i < 20; ++i) {
    if (stays_awake() && sleeps()) return;
  }
  GTEST_SKIP() << "other processes use the cores, so no thread stays awake, whatever `awake` is";
}

TEST(Library, an_invocation_is_answered_later_by_another_thread) {
  ConnectedPair pair;
  std::optional<Invocation> kept;
  std::mutex mutex;
  std::condition_variable has_arrived;
  ASSERT_TRUE(pair.server
                  .add("later",
                       [&](Invocation& invocation) {
                         const std::lock_guard lock(mutex);
                         kept.emplace(std::move(invocation));
                         has_arrived.notify_one();
                       })
                  .ok());
  std::thread answerer([&] {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(has_arrived.wait_for(lock, 10s, [&] { return kept.has_value(); }));
    kept->answer().integer(7);
    kept->reply();
  });
  Call call(pair.to_server, "later");
  run(call);
  answerer.join();
  ASSERT_TRUE(call.status().ok());
  EXPECT_EQ(call.reply().values().next().integer, 7);
}

TEST(Library, a_call_that_is_under_way_may_be_given_up_and_opened_again) {
  ConnectedPair pair;
  ASSERT_TRUE(pair.server.add("echo", echo).ok());
  std::atomic<int> num_finished{0};
  Call call(pair.to_server, "echo");
  call.on_finished([&] { ++num_finished; });
  const std::vector<float> unowned(100'000);
  for (int i = 0; i < 10; ++i) {
    call.request().tensor(std::span<const float>(unowned));
    call.start();
    call.open(pair.to_server, "echo");
  }
  run(call);
  EXPECT_TRUE(call.status().ok());
  EXPECT_TRUE(pair.client.drain(10s));
  EXPECT_EQ(num_finished.load(), 11);
}

TEST(Library, calls_end_when_cancelled_or_late_or_their_runtime_is_closed) {
  ConnectedPair pair;
  std::optional<Invocation> kept[3];
  ASSERT_TRUE(pair.server
                  .add("keep",
                       [&](Invocation& invocation) {
                         kept[invocation.arguments().values().next().integer].emplace(std::move(invocation));
                       })
                  .ok());
  std::vector<Call> calls;
  for (int i = 0; i < 3; ++i) {
    calls.emplace_back(pair.to_server, "keep");
    calls[i].request().integer(i);
  }
  calls[1].set_timeout(50ms);
  for (Call& call : calls) call.start();
  EXPECT_FALSE(calls[0].wait(10ms));
  calls[0].cancel();
  EXPECT_EQ(calls[0].status().code(), ErrorCode::kCancelled);
  ASSERT_TRUE(calls[1].wait(10s));
  EXPECT_EQ(calls[1].status().code(), ErrorCode::kTimeout);
  pair.client.close();
  EXPECT_TRUE(calls[2].finished());
  EXPECT_EQ(calls[2].status().code(), ErrorCode::kAborted);
  EXPECT_FALSE(pair.to_server.failure().ok());
  for (std::optional<Invocation>& invocation : kept) invocation.reset();
}

TEST(Library, a_reply_without_a_value_is_nothing) {
  ConnectedPair pair;
  ASSERT_TRUE(pair.server.add("at once", [](Invocation& invocation) { invocation.reply(); }).ok());
  ASSERT_TRUE(pair.server
                  .add("opened",
                       [](Invocation& invocation) {
                         (void)invocation.answer();
                         invocation.reply();
                       })
                  .ok());
  for (const char* const function : {"at once", "opened"}) {
    Call call(pair.to_server, function);
    run(call);
    ASSERT_TRUE(call.status().ok()) << call.status().message();
    rpc::ValueReader values = call.reply().values();
    EXPECT_EQ(values.next().kind, rpc::Value::Kind::kNothing) << function;
    EXPECT_TRUE(values.at_end());
  }
}

TEST(Library, what_is_told_and_fails_is_logged_where_it_failed) {
  testing::internal::CaptureStderr();
  {
    ConnectedPair pair;
    ASSERT_TRUE(pair.server.add("fails", [](Invocation& invocation) { invocation.fail("ValueError", "why"); }).ok());
    for (const char* const function : {"absent", "fails"}) {
      Call call(pair.to_server, function);
      call.tell();
      ASSERT_TRUE(call.wait(10s));
    }
    EXPECT_TRUE(pair.client.drain(10s));
    EXPECT_TRUE(pair.server.drain(10s));
  }
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_NE(logged.find("one-way call of 'client' to 'absent' failed: LookupError: the runtime 'server' has no "
                        "function 'absent'"),
            std::string::npos)
      << logged;
  EXPECT_NE(logged.find("one-way call of 'client' to 'fails' failed: ValueError: why"), std::string::npos) << logged;
}

TEST(Library, what_is_told_has_no_answer) {
  ConnectedPair pair;
  std::atomic<int> sum{0};
  ASSERT_TRUE(pair.server
                  .add("add",
                       [&](Invocation& invocation) {
                         EXPECT_FALSE(invocation.wants_answer());
                         sum += static_cast<int>(invocation.arguments().values().next().integer);
                         invocation.reply();
                       })
                  .ok());
  for (int i = 1; i <= 3; ++i) {
    Call call(pair.to_server, "add");
    call.request().integer(i);
    call.tell();
    ASSERT_TRUE(call.wait(10s));
    EXPECT_TRUE(call.status().ok());
  }
  EXPECT_TRUE(pair.client.drain(10s));
  EXPECT_TRUE(pair.server.drain(10s));
  EXPECT_EQ(sum.load(), 6);
}

TEST(Library, closing_waits_for_functions_that_are_running) {
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_leave{false};
  std::atomic<bool> has_left{false};
  ConnectedPair pair;
  ASSERT_TRUE(pair.server
                  .add("stay",
                       [&](Invocation& invocation) {
                         is_inside.store(true);
                         is_inside.notify_all();
                         may_leave.wait(false);
                         has_left.store(true);
                         invocation.reply();
                       })
                  .ok());
  Call call(pair.to_server, "stay");
  std::thread caller([&] {
    call.start();
    call.wait(10s);
  });
  is_inside.wait(false);
  std::thread closer([&] {
    pair.server.close();
    EXPECT_TRUE(has_left.load());
  });
  while (pair.to_server.failure().ok()) std::this_thread::yield();  // until it is closed, except for the function
  may_leave.store(true);
  may_leave.notify_all();
  closer.join();
  caller.join();
}

TEST(Library, a_secret_opens_a_port_and_another_does_not) {
  Runtime server = ConnectedPair::opened("server");
  Runtime client = ConnectedPair::opened("client");
  EXPECT_FALSE(server.listen("127.0.0.1", 0, "too short").ok());
  Result<uint16_t> port = server.listen("127.0.0.1", 0, "sixteen bytes and more");
  ASSERT_TRUE(port.ok());
  EXPECT_TRUE(client.connect("127.0.0.1", port.value(), "sixteen bytes and more", 10s).ok());
  const Result<Peer> wrong = client.connect("127.0.0.1", port.value(), "another one, as long as it", 10s);
  EXPECT_EQ(wrong.status().code(), ErrorCode::kUnauthenticated);
  const std::vector<std::byte> address = server.address().value();
  const std::string_view text(reinterpret_cast<const char*>(address.data()), address.size());
  EXPECT_EQ(text.find("sixteen bytes and more"), std::string_view::npos);
  EXPECT_TRUE(client.connect(address, 10s).ok());
  EXPECT_FALSE(Runtime::open({.name = ""}).ok());
}

}  // namespace
}  // namespace axon::library
