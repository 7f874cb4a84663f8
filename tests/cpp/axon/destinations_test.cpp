// Tests where the tensors of a message go, through the library's interface.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

constexpr size_t kSizes[] = {3, 1000, 5000, 100'000};  // in the header frame, and in payload frames

std::vector<float> numbers_of(size_t size) {
  std::vector<float> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 7.0F);
  return numbers;
}

void run(Call& call) {
  call.start();
  ASSERT_TRUE(call.wait(10s));
}

// Returns how a call fails. It has two tensors of four and five numbers, and its reply is the same and goes where the
// call says.
std::string failure_of(Call& call) {
  const std::vector<float> numbers(9);
  call.request().tensor(std::span(numbers).first(4));
  call.request().tensor(std::span(numbers).first(5));
  run(call);
  if (call.status().ok()) return "";
  const bool is_theirs = call.status().code() == ErrorCode::kRemote;
  return call.status().message() + (is_theirs ? ": " + std::string(call.failure()) : "");
}

class DestinationsTest : public testing::Test {
 protected:
  DestinationsTest() { EXPECT_TRUE(pair_.server.add("echo", echo).ok()); }

  // Expects calls that are received with `ask` to fail, at the function and at the caller.
  void expect_failure(const Ask& ask, std::string_view class_name, ErrorCode code, std::string_view why) {
    const std::string function = "asked" + std::to_string(num_functions_++);
    ASSERT_TRUE(pair_.server.add(function, echo, ask).ok());
    Call there(pair_.to_server, function);
    EXPECT_EQ(failure_of(there), std::string(class_name) + ": " + std::string(why));
    Call here(pair_.to_server, "echo");
    here.on_announced(ask);
    EXPECT_EQ(failure_of(here), why);
    EXPECT_EQ(here.status().code(), code);
    here.on_announced({});
    here.open(pair_.to_server, "echo");
    EXPECT_EQ(failure_of(here), "");
  }

  ConnectedPair pair_;
  int num_functions_ = 0;
};

TEST_F(DestinationsTest, arguments_come_into_what_their_function_is_given) {
  std::vector<float> memory;
  const auto ask = [&](Announced& coming) {
    EXPECT_EQ(coming.num_tensors(), 2u);
    EXPECT_EQ(coming.values().next().integer, 42);
    const Incoming second = coming.tensor(1);
    EXPECT_EQ(second.type, DataType::kFloat32);
    ASSERT_EQ(second.shape.size(), 1u);
    EXPECT_EQ(second.num_bytes, second.shape[0] * sizeof(float));
    EXPECT_EQ(coming.tensor(2).num_bytes, 0u);
    memory.resize(second.shape[0]);
    coming.receive_into(1, std::span(memory));
  };
  const auto check = [&](Invocation& invocation) {
    EXPECT_NE(invocation.arguments().tensor(0).as<float>().data(), memory.data());
    EXPECT_EQ(invocation.arguments().tensor(1).as<float>().data(), memory.data());
    echo(invocation);
  };
  ASSERT_TRUE(pair_.server.add("check", check, ask).ok());
  for (const size_t size : kSizes) {
    const std::vector<float> numbers = numbers_of(size);
    Call call(pair_.to_server, "check");
    call.request().integer(42);
    call.request().tensor(std::span(numbers));
    call.request().tensor(std::span(numbers));
    run(call);
    ASSERT_TRUE(call.status().ok()) << call.status().message() << ": " << call.failure();
    EXPECT_EQ(memory, numbers);
    for (const size_t index : {0, 1}) EXPECT_TRUE(std::ranges::equal(call.reply().tensor(index).as<float>(), numbers));
  }
}

TEST_F(DestinationsTest, replies_come_into_what_their_caller_has_given) {
  std::vector<float> memory;
  Call call(pair_.to_server, "echo");
  call.on_announced([&](Announced& coming) {
    memory.resize(coming.tensor(0).shape[0]);
    coming.receive_into(0, std::as_writable_bytes(std::span(memory)));
  });
  for (const size_t size : kSizes) {
    const std::vector<float> numbers = numbers_of(size);
    call.request().tensor(std::span(numbers));
    run(call);
    ASSERT_TRUE(call.status().ok()) << call.status().message();
    EXPECT_EQ(call.reply().tensor(0).as<float>().data(), memory.data());
    EXPECT_EQ(memory, numbers);
    call.open(pair_.to_server, "echo");
  }
  run(call);  // `ask` is not called without tensors
  EXPECT_TRUE(call.status().ok());
}

TEST_F(DestinationsTest, owners_go_with_what_has_arrived) {
  const auto memory = std::make_shared<std::vector<float>>(100'000);
  const Ask ask = [memory](Announced& coming) { coming.receive_into(0, std::span(*memory), Owner::of(memory)); };
  ASSERT_TRUE(pair_.server.add("owned", echo, ask).ok());
  const std::vector<float> numbers = numbers_of(memory->size());
  Call call(pair_.to_server, "owned");
  const auto num_owners = memory.use_count();
  call.request().tensor(std::span(numbers));
  run(call);
  ASSERT_TRUE(call.status().ok()) << call.status().message();
  while (memory.use_count() != num_owners) std::this_thread::yield();

  call.open(pair_.to_server, "echo");
  call.on_announced(ask);
  call.request().tensor(std::span(numbers));
  const auto num_idle = memory.use_count();
  run(call);
  EXPECT_EQ(memory.use_count(), num_idle + 1);
  while (!call.released()) std::this_thread::yield();
  call.open(pair_.to_server, "echo");
  EXPECT_EQ(memory.use_count(), num_idle);
}

TEST_F(DestinationsTest, what_does_not_fit_fails_the_call_and_says_why) {
  std::vector<float> memory(9);
  const std::span<float> floats(memory);
  const auto expect_refused = [&](const Ask& ask, std::string_view why) {
    expect_failure(ask, "ValueError", ErrorCode::kInvalidArgument, "receive_into: " + std::string(why));
  };
  expect_refused([&](Announced& coming) { coming.receive_into(0, floats.first(3)); },
                 "tensor 0 is given 12 bytes; allowed: 16, the size of the received tensor");
  expect_refused([&](Announced& coming) { coming.receive_into(1, floats.first(6)); },
                 "tensor 1 is given 24 bytes; allowed: 20, the size of the received tensor");
  expect_refused([&](Announced& coming) { coming.receive_into(2, floats.first(4)); },
                 "index is 2; allowed: up to 1, the last tensor of the message");
  std::vector<int32_t> integers(4);
  expect_refused([&](Announced& coming) { coming.receive_into(0, std::span(integers)); },
                 "tensor 0 is given int32; allowed: float32, the type of the received tensor");
  const auto overlapping = [&](Announced& coming) {
    coming.receive_into(1, floats.subspan(3, 5));
    coming.receive_into(0, floats.first(4));
  };
  expect_refused(overlapping, "memory of tensors overlaps; use separate memory for each");
}

TEST_F(DestinationsTest, a_function_that_is_asked_may_refuse_or_throw) {
  expect_failure([](Announced& coming) { coming.refuse("all is in use"); }, "BufferError",
                 ErrorCode::kResourceExhausted, "all is in use");
  expect_failure([](Announced&) { throw std::runtime_error("thrown"); }, "RuntimeError", ErrorCode::kInternal,
                 "thrown");
}

TEST_F(DestinationsTest, a_call_is_not_released_while_it_is_asked) {
  std::atomic<bool> is_asked{false};
  std::atomic<bool> may_return{false};
  std::vector<float> memory(100'000);
  const std::vector<float> numbers = numbers_of(memory.size());
  Call call(pair_.to_server, "echo");
  call.on_announced([&](Announced& coming) {
    is_asked.store(true);
    is_asked.notify_all();
    may_return.wait(false);
    coming.receive_into(0, std::span(memory));
  });
  call.request().tensor(std::span(numbers));
  std::thread caller([&] { run(call); });  // `ask` may be running on it
  is_asked.wait(false);
  call.cancel();
  EXPECT_FALSE(call.released());
  may_return.store(true);
  may_return.notify_all();
  caller.join();
  EXPECT_EQ(call.status().code(), ErrorCode::kCancelled);
  while (!call.released()) std::this_thread::yield();
  EXPECT_EQ(memory, std::vector<float>(memory.size()));
  call.open(pair_.to_server, "echo");
  call.request().tensor(std::span(numbers));
  run(call);
  ASSERT_TRUE(call.status().ok()) << call.status().message();
  EXPECT_EQ(memory, numbers);
}

// Sets the destination of a reply once it is allowed to, and notes whether it is copied in the meantime.
struct Hesitant {
  struct Shared {
    std::vector<float> memory = std::vector<float>(100'000);
    std::atomic<bool> is_asked{false};
    std::atomic<bool> may_return{false};
    std::atomic<bool> is_copied_amid{false};
  };

  std::shared_ptr<Shared> shared;  // shared with the test, which may end before it returns
  bool is_running = false;

  explicit Hesitant(std::shared_ptr<Shared> with) : shared(std::move(with)) {}
  Hesitant(const Hesitant& other) : shared(other.shared) {
    if (other.is_running) shared->is_copied_amid.store(true);
  }

  void operator()(Announced& coming) {
    is_running = true;
    shared->is_asked.store(true);
    while (!shared->may_return.load()) std::this_thread::yield();
    coming.receive_into(0, std::span(shared->memory));
    is_running = false;
  }
};

TEST_F(DestinationsTest, a_function_that_is_asked_is_not_copied_meanwhile) {
  const auto shared = std::make_shared<Hesitant::Shared>();
  const std::vector<float> numbers = numbers_of(shared->memory.size());
  std::optional<Invocation> held;
  std::atomic<bool> is_held{false};
  const auto hold = [&](Invocation& invocation) {
    held.emplace(std::move(invocation));
    is_held.store(true);
  };
  ASSERT_TRUE(pair_.server.add("hold", hold).ok());
  Call call(pair_.to_server, "hold");
  call.on_announced(Hesitant(shared));
  call.request().tensor(std::span(numbers));
  call.start();
  std::thread answers([&] {  // `ask` may be running on it
    while (!is_held.load()) std::this_thread::yield();
    held->answer().tensor(std::span<const float>(numbers));
    held->reply();
  });
  while (!shared->is_asked.load()) std::this_thread::yield();
  call.cancel();
  call.open(pair_.to_server, "echo");  // before the previous call is released
  call.request().tensor(std::span(numbers));
  shared->may_return.store(true);
  run(call);
  answers.join();
  ASSERT_TRUE(call.status().ok()) << call.status().message();
  EXPECT_EQ(shared->memory, numbers);
  EXPECT_FALSE(shared->is_copied_amid.load());
}

}  // namespace
}  // namespace axon::library
