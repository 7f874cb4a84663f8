// Generators of one runtime, over which another one iterates.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

class Streaming : public testing::Test {
 protected:
  Streaming() {
    const auto count = [this](Received arguments) -> Generator {
      rpc::ValueReader values = arguments.values();
      EXPECT_EQ(values.next().count, 2u);
      EXPECT_EQ(values.next().count, 1u);
      const int64_t end = values.next().integer;
      return [this, end, number = int64_t{0}, held = token_](Next& next) mutable {
        if (number == end) return next.end();
        num_made_.fetch_add(1);
        next.value().integer(number++);
        next.reply();
      };
    };
    EXPECT_TRUE(pair_.server.add_generator("count", count).ok());
  }

  Stream counting_to(int64_t end, size_t ahead) {
    Stream numbers(pair_.to_server, "count", {.ahead = ahead});
    numbers.arguments(1).integer(end);
    numbers.start();
    return numbers;
  }

  // Returns a stream without arguments of a generator that has just been added.
  Stream streaming(const Generator& generator, StreamOptions options) {
    const std::string name = "generator" + std::to_string(num_generators_++);
    EXPECT_TRUE(pair_.server.add_generator(name, [generator](Received) { return generator; }).ok());
    Stream values(pair_.to_server, name, std::move(options));
    values.arguments(0);
    values.start();
    return values;
  }

  void expect_none_open() {
    while (token_.use_count() != 1) std::this_thread::yield();
  }

  std::shared_ptr<int> token_ = std::make_shared<int>();  // each generator shares it
  std::atomic<int64_t> num_made_{0};
  int num_generators_ = 0;
  std::optional<Invocation> held_;
  ConnectedPair pair_;
};

TEST_F(Streaming, values_come_in_order_until_the_generator_is_through) {
  for (const size_t ahead : {1, 2, 16, 300}) {
    for (const int64_t end : {0, 1, 100}) {
      Stream numbers = counting_to(end, ahead);
      for (int64_t i = 0; i < end; ++i) {
        ASSERT_TRUE(numbers.next(10s)) << numbers.failure();
        ASSERT_EQ(numbers.value().next().integer, i);
        ASSERT_FALSE(numbers.finished());
      }
      EXPECT_FALSE(numbers.next(10s));
      EXPECT_TRUE(numbers.finished());
      EXPECT_TRUE(numbers.status().ok()) << numbers.status().message() << ": " << numbers.failure();
      EXPECT_FALSE(numbers.next(0ms));
      expect_none_open();
    }
  }
}

TEST_F(Streaming, named_arguments_come_beside_the_positional_ones) {
  const auto range = [](Received arguments) -> Generator {
    const int64_t end = arguments.argument(0).next().integer;
    const int64_t step = arguments.argument("step").next().integer;
    EXPECT_EQ(arguments.argument("label").next().text(), "by step");
    EXPECT_EQ(arguments.argument(1).next().kind, rpc::Value::Kind::kBroken);
    EXPECT_EQ(arguments.argument("absent").next().kind, rpc::Value::Kind::kBroken);
    return [end, step, number = int64_t{0}](Next& next) mutable {
      if (number >= end) return next.end();
      next.value().integer(std::exchange(number, number + step));
      next.reply();
    };
  };
  ASSERT_TRUE(pair_.server.add_generator("range", range).ok());
  Stream numbers(pair_.to_server, "range", {.ahead = 2});
  numbers.arguments(1).integer(10);
  Message named = numbers.named(3);
  named.text("nested");  // a nested value, which is skipped
  named.array(2);
  named.map(1);
  named.text("step");
  named.integer(7);
  named.nothing();
  named.text("label");
  named.text("by step");
  named.text("step");
  named.integer(5);
  numbers.start();
  for (const int64_t number : {0, 5}) {
    ASSERT_TRUE(numbers.next(10s)) << numbers.status().message() << ": " << numbers.failure();
    EXPECT_EQ(numbers.value().next().integer, number);
  }
  EXPECT_FALSE(numbers.next(10s));
  EXPECT_TRUE(numbers.status().ok()) << numbers.status().message() << ": " << numbers.failure();
}

TEST_F(Streaming, no_more_is_made_than_is_asked_ahead) {
  constexpr int64_t kAhead = 4;
  Stream numbers = counting_to(100, kAhead);
  for (int64_t num_used = 1; num_used <= 20; ++num_used) {
    ASSERT_TRUE(numbers.next(10s));
    pair_.client.serve(1ms);
    EXPECT_LE(num_made_.load(), num_used + kAhead);
  }
}

TEST_F(Streaming, tensors_come_into_what_the_caller_gives) {
  static constexpr size_t kNumElements = 100'000;
  const auto fresh = [](float number) { return std::make_shared<std::vector<float>>(kNumElements, number); };
  const Generator make = [fresh, number = 0.0F](Next& next) mutable {
    const auto made = fresh(number++);
    next.value().tensor(std::span<const float>(*made), Owner::of(made));
    next.reply();
  };
  std::mutex mutex;
  std::vector<const float*> given;
  const Ask ask = [&](Announced& coming) {
    const auto memory = fresh(-1);
    coming.receive_into(0, std::span(*memory), Owner::of(memory));
    const std::lock_guard lock(mutex);
    given.push_back(memory->data());
  };
  Stream values = streaming(make, {.ahead = 2, .ask = ask});
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(values.next(10s)) << values.failure();
    EXPECT_EQ(values.value().next().kind, rpc::Value::Kind::kTensor);
    const std::span<float> elements = values.received().tensor(0).as<float>();
    EXPECT_EQ(elements.front(), static_cast<float>(i));
    EXPECT_EQ(elements.back(), static_cast<float>(i));
    const std::lock_guard lock(mutex);
    EXPECT_NE(std::ranges::find(given, elements.data()), given.end());
  }
  values.stop();
  EXPECT_TRUE(pair_.client.drain(10s));  // values requested ahead are still pending
}

TEST_F(Streaming, no_memory_is_asked_for_once_it_has_left_its_scope) {
  constexpr size_t kAhead = 4;
  std::mutex mutex;
  std::vector<Next> held;
  const auto num_held = [&] {
    const std::lock_guard lock(mutex);
    return held.size();
  };
  const Generator later = [&](Next& next) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(next));
  };
  std::atomic<int> num_asked{0};
  {
    Stream values = streaming(later, {.ahead = kAhead, .ask = [&](Announced&) { num_asked.fetch_add(1); }});
    while (num_held() < kAhead) EXPECT_FALSE(values.next(1ms));
  }
  const std::vector<float> elements(10'000);
  for (Next& next : held) {
    next.value().tensor(std::span<const float>(elements));
    next.reply();
  }
  EXPECT_TRUE(pair_.client.drain(10s));
  EXPECT_EQ(num_asked, 0);
}

TEST_F(Streaming, values_may_be_made_later_and_in_any_order) {
  constexpr size_t kAhead = 8;
  std::mutex mutex;
  std::vector<Next> held;
  const Generator later = [&](Next& next) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(next));
  };
  Stream values = streaming(later, {.ahead = kAhead});
  std::thread maker([&] {
    std::vector<Next> taken;
    while (taken.size() < kAhead) {
      const std::lock_guard lock(mutex);
      for (Next& next : held) taken.push_back(std::move(next));
      held.clear();
    }
    for (size_t i = kAhead; i-- > 0;) {
      if (i == kAhead - 1) {
        taken[i].value().text("what has been begun is forgotten");
        taken[i].end();
        continue;
      }
      EXPECT_FALSE(taken[i].is_cancelled()) << "what was asked for before the end is still wanted";
      taken[i].value().integer(static_cast<int64_t>(i));
      taken[i].reply();
    }
  });
  for (size_t i = 0; i + 1 < kAhead; ++i) {
    ASSERT_TRUE(values.next(10s)) << values.failure();
    EXPECT_EQ(values.value().next().integer, static_cast<int64_t>(i));
  }
  EXPECT_FALSE(values.next(10s));
  EXPECT_TRUE(values.finished());
  EXPECT_TRUE(values.status().ok());
  maker.join();
  const std::lock_guard lock(mutex);
  held.clear();
}

TEST_F(Streaming, a_value_that_does_not_come_in_time_may_still_come) {
  std::mutex mutex;
  std::vector<Next> held;
  const Generator later = [&](Next& next) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(next));
  };
  Stream values = streaming(later, {.ahead = 1});
  EXPECT_FALSE(values.next(20ms));
  EXPECT_FALSE(values.finished());
  const auto answer = [&] {
    const std::lock_guard lock(mutex);
    for (Next& next : held) next.reply();
    held.clear();
  };
  while (!values.next(1ms)) answer();
  EXPECT_EQ(values.value().next().kind, rpc::Value::Kind::kNothing);
  values.stop();
  EXPECT_TRUE(values.finished());
  const auto has_heard = [&] {
    const std::lock_guard lock(mutex);
    return !held.empty() && held[0].is_cancelled();
  };
  while (!has_heard()) std::this_thread::yield();
  answer();
}

TEST_F(Streaming, failures_end_it_and_say_what_the_generator_has_said) {
  const auto failure_of = [&](const Generator& generator) {
    Stream values = streaming(generator, {.ahead = 1});
    EXPECT_TRUE(values.next(10s));
    EXPECT_FALSE(values.next(10s));
    EXPECT_TRUE(values.finished());
    EXPECT_EQ(values.status().code(), ErrorCode::kRemote);
    return values.status().message() + ": " + std::string(values.failure());
  };
  const auto once = [](Generator then) -> Generator {
    return [then = std::move(then), is_first = true](Next& next) mutable {
      if (std::exchange(is_first, false)) return next.reply();
      then(next);
    };
  };
  EXPECT_EQ(failure_of(once([](Next& next) { next.fail("ValueError", "no more"); })), "ValueError: no more");
  EXPECT_EQ(failure_of(once([](Next&) { throw std::runtime_error("thrown"); })), "RuntimeError: thrown");
  EXPECT_EQ(failure_of(once([](Next&) {})), "RuntimeError: the generator did not produce its next value");
}

TEST_F(Streaming, generators_go_when_they_are_stopped_or_their_caller_is_gone_or_their_runtime_is_closed) {
  counting_to(1'000'000, 4);  // immediately
  expect_none_open();
  Stream numbers = counting_to(1'000'000, 4);
  ASSERT_TRUE(numbers.next(10s));
  numbers.stop();
  EXPECT_TRUE(numbers.finished());
  EXPECT_TRUE(numbers.status().ok());
  expect_none_open();

  Runtime other = ConnectedPair::opened("other");
  const Peer server = other.connect(pair_.server.address().value(), 10s).value();
  Stream left(server, "count");
  left.arguments(1).integer(1'000'000);
  left.start();
  ASSERT_TRUE(left.next(10s));
  other.close();
  while (left.next(10s)) continue;
  EXPECT_EQ(left.status().code(), ErrorCode::kAborted);
  expect_none_open();

  Stream last = counting_to(1'000'000, 4);
  ASSERT_TRUE(last.next(10s));
  pair_.server.close();
  EXPECT_EQ(token_.use_count(), 1);
  while (last.next(10s)) continue;
  EXPECT_EQ(last.status().code(), ErrorCode::kPeerLost);
}

// A thread that runs a generator for others, which keep requesting values, must still attend to its own wait.
TEST_F(Streaming, no_thread_is_held_by_what_others_ask_for) {
  static constexpr int kMostValues = 2000;
  Stream slow = streaming(
      [number = int64_t{0}](Next& next) mutable {
        std::this_thread::sleep_for(1ms);
        next.value().integer(number++);
        next.reply();
      },
      {.ahead = 4});
  std::atomic<bool> is_over{false};
  std::thread asks([&] {
    for (int i = 0; i < kMostValues && !is_over.load(); ++i) ASSERT_TRUE(slow.next(30s));
  });
  ASSERT_TRUE(pair_.server.add("never", [this](Invocation& invocation) { held_.emplace(std::move(invocation)); }).ok());
  Call never(pair_.to_server, "never");
  never.start();
  auto longest = std::chrono::steady_clock::duration::zero();
  for (int i = 0; i < 100; ++i) {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_FALSE(never.wait(2ms));
    longest = std::max(longest, std::chrono::steady_clock::now() - began);
  }
  is_over.store(true);
  asks.join();
  EXPECT_LT(longest, kMostValues / 4 * 1ms);
}

TEST_F(Streaming, what_is_none_says_so) {
  ASSERT_TRUE(pair_.server.add("echo", echo).ok());
  const auto failure_of = [&](const char* function, size_t ahead) {
    Stream values(pair_.to_server, function, {.ahead = ahead});
    values.arguments(0);
    values.start();
    EXPECT_FALSE(values.next(10s));
    EXPECT_TRUE(values.finished());
    return values.status().message() + ": " + std::string(values.failure());
  };
  EXPECT_EQ(failure_of("echo", 1), "Stream: 'echo' of 'server' is not a generator function: ");
  EXPECT_EQ(failure_of("absent", 1), "LookupError: the runtime 'server' has no function 'absent'");
  EXPECT_EQ(failure_of("count", 0), "Stream: ahead is 0; allowed: 1 or more: ");
  const auto failure_of_call = [&](const char* function) {
    Call call(pair_.to_server, function);
    call.request().array(0);
    call.start();
    EXPECT_TRUE(call.wait(10s));
    return call.status().message() + ": " + std::string(call.failure());
  };
  EXPECT_EQ(failure_of_call("count"), "TypeError: 'count' is a generator function; iterate over it");
  EXPECT_EQ(failure_of_call("axon.next"), "LookupError: no generator 0 is open");
}

}  // namespace
}  // namespace axon::library
