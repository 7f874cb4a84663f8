// Conditions and the transfers that they start. A thread takes the part of a device's kernels.
#include "axon/condition.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"
#include "comes_true.hpp"
#include "engine/condition.hpp"
#include "engine/engine.hpp"

namespace axon::library {
namespace {

class Conditions : public testing::Test {
 protected:
  static constexpr size_t kBlocks = 4;
  static constexpr size_t kBlockBytes = 1000;
  static constexpr Blocks kLayout{.num_bytes = kBlockBytes, .count = kBlocks};
  static constexpr std::array<int32_t, kBlocks> kAll{0, 1, 2, 3};

  Condition condition() { return pair_.client.condition().value(); }
  Plan write_plan() { return pair_.to_server.plan_write(local_, kLayout, remote_, kLayout).value(); }
  Plan read_plan() { return pair_.to_server.plan_read(local_, kLayout, remote_, kLayout).value(); }
  void fill(int value) { std::ranges::fill(local_, static_cast<std::byte>(value)); }
  bool has_arrived(int value) const {
    return std::ranges::all_of(memory_, [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
  }

  ConnectedPair pair_;
  std::vector<std::byte> local_{kBlocks * kBlockBytes};
  std::vector<std::byte> memory_{kBlocks * kBlockBytes};
  Region region_ = pair_.server.expose(memory_, {.access = Access::kReadWrite, .name = "memory"}).value();
  Remote remote_ = pair_.to_server.open(region_.handle({}).value(), 30s).value();
};

TEST_F(Conditions, start_a_transfer_each_time_and_are_set_by_its_end) {
  Condition filled = condition(), sent = condition();
  const TriggeredTransfer sending =
      write_plan().post_when(filled, kAll, kAll, {.then = sent, .notification = "sent"}).value();
  EXPECT_FALSE(sent.wait(20ms));
  for (int value = 1; value <= 100; ++value) {
    fill(value);
    filled.set();
    ASSERT_TRUE(sent.wait(30s));
    ASSERT_TRUE(has_arrived(value));
  }
  EXPECT_EQ(sent.num_set(), 100u);
  EXPECT_EQ(sending.num_finished(), 100u);
  EXPECT_TRUE(sending.status().ok());
  size_t num_notified = 0;
  while (num_notified < 100) num_notified += pair_.server.notifications(30s).value().size();
  EXPECT_EQ(num_notified, 100u);
}

TEST_F(Conditions, that_are_set_meanwhile_start_as_many_transfers) {
  Condition begin = condition(), then = condition();
  begin.set();  // before anything waits for it
  const TriggeredTransfer sending = write_plan().post_when(begin, kAll, kAll, {.then = then}).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) begin.set();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(then.wait(30s));
  EXPECT_FALSE(then.wait(20ms));
  EXPECT_EQ(sending.num_finished(), 200u);
}

// A read whose end starts two writes, to other blocks of the peer.
TEST_F(Conditions, make_chains_in_which_no_thread_takes_part) {
  std::iota(reinterpret_cast<unsigned char*>(memory_.data()),
            reinterpret_cast<unsigned char*>(memory_.data()) + kBlockBytes, static_cast<unsigned char>(1));
  Condition begin = condition(), received = condition(), first = condition(), second = condition();
  const Plan write = write_plan();
  const auto blocks = [](int32_t id) { return std::array{id}; };
  const TriggeredTransfer receiving = read_plan().post_when(begin, blocks(0), blocks(0), {.then = received}).value();
  const TriggeredTransfer left = write.post_when(received, blocks(0), blocks(1), {.then = first}).value();
  const TriggeredTransfer right = write.post_when(received, blocks(0), blocks(3), {.then = second}).value();
  begin.set();
  ASSERT_TRUE(first.wait(30s));
  ASSERT_TRUE(second.wait(30s));
  for (const size_t block : {1, 3}) {
    EXPECT_TRUE(std::equal(memory_.begin(), memory_.begin() + kBlockBytes, memory_.begin() + block * kBlockBytes));
  }
}

TEST_F(Conditions, end_with_the_first_transfer_that_fails_and_end_the_next_ones) {
  Condition begin = condition(), then = condition(), last = condition();
  const Plan plan = write_plan();
  const TriggeredTransfer denied = plan.post_when(begin, kAll, kAll, {.then = then}).value();
  const TriggeredTransfer following = plan.post_when(then, kAll, kAll, {.then = last}).value();
  EXPECT_TRUE(region_.close(30s));
  begin.set();
  EXPECT_FALSE(last.wait(30s));
  EXPECT_EQ(last.status().code(), ErrorCode::kAccessDenied);
  EXPECT_NE(last.status().message().find("'memory'"), std::string::npos) << last.status().message();
  EXPECT_EQ(denied.status().code(), ErrorCode::kAccessDenied);
  EXPECT_EQ(following.status().code(), ErrorCode::kAccessDenied);
  EXPECT_EQ(following.num_finished(), 0u);
  begin.set();
  EXPECT_FALSE(then.wait(20ms));
  const TriggeredTransfer late = plan.post_when(last, kAll, kAll).value();  // the condition has ended before
  EXPECT_TRUE(comes_true([&] { return !late.status().ok(); }));
}

TEST_F(Conditions, start_nothing_after_a_close) {
  Condition begin = condition(), then = condition();
  TriggeredTransfer sending = write_plan().post_when(begin, kAll, kAll, {.then = then}).value();
  begin.set();
  ASSERT_TRUE(then.wait(30s));
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> gone = held;
  sending = write_plan().post_when(begin, kAll, kAll, {.then = then, .owner = Owner::of(std::move(held))}).value();
  EXPECT_FALSE(gone.expired());
  sending.close();
  EXPECT_TRUE(comes_true([&] { return sending.released(); }));
  begin.set();
  EXPECT_FALSE(then.wait(20ms));
  EXPECT_EQ(sending.num_finished(), 0u);
  {
    const TriggeredTransfer ended = std::move(sending);
  }
  EXPECT_TRUE(comes_true([&] { return gone.expired(); }));
}

TEST_F(Conditions, end_when_the_runtime_is_closed_and_used) {
  Condition begin = condition(), then = condition();
  const TriggeredTransfer sending = write_plan().post_when(begin, kAll, kAll, {.then = then}).value();
  pair_.client.close();
  begin.set();
  EXPECT_FALSE(then.wait(30s));
  EXPECT_EQ(then.status().code(), sending.status().code());
  EXPECT_FALSE(then.status().ok());
}

TEST_F(Conditions, are_noticed_when_a_device_sets_them) {
  Condition filled = condition();
  const std::atomic_ref num_set(filled.counts()->num_set_by_device);
  num_set.store(UINT32_MAX - 10);  // the count wraps around
  filled.attach_device();
  const TriggeredTransfer sending = write_plan().post_when(filled, kAll, kAll).value();
  Condition::expect(filled.engine());
  for (uint64_t i = 1; i <= 50; ++i) {
    fill(static_cast<int>(i));
    num_set.fetch_add(1);
    ASSERT_TRUE(comes_true([&] { return sending.num_finished() == i; }));
    ASSERT_TRUE(has_arrived(static_cast<int>(i)));
  }
  filled.detach_device();
}

// Blocks of a kernel that set it at once may store their counts out of order.
TEST_F(Conditions, are_set_no_more_often_if_a_device_stores_its_counts_out_of_order) {
  Condition filled = condition(), sent = condition();
  const TriggeredTransfer sending = write_plan().post_when(filled, kAll, kAll, {.then = sent}).value();
  const std::atomic_ref num_set(filled.counts()->num_set_by_device);
  filled.attach_device();
  Condition::expect(filled.engine());
  num_set.store(2);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(sent.wait(30s));
  num_set.store(1);
  EXPECT_FALSE(sent.wait(20ms));
  num_set.store(2);
  EXPECT_FALSE(sent.wait(20ms));
  EXPECT_EQ(sending.num_finished(), 2u);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(filled.wait(30s));
  num_set.store(1);
  EXPECT_FALSE(filled.wait(20ms));
  filled.detach_device();
}

TEST_F(Conditions, are_read_when_a_device_leaves_them) {
  Condition filled = condition(), sent = condition();
  const TriggeredTransfer sending = write_plan().post_when(filled, kAll, kAll, {.then = sent}).value();
  filled.attach_device();
  std::atomic_ref(filled.counts()->num_set_by_device).store(1);
  filled.detach_device();
  EXPECT_TRUE(sent.wait(30s));
}

TEST_F(Conditions, that_were_set_before_they_ended_count) {
  Condition first = condition(), second = condition(), then = condition();
  const TriggeredTransfer sending = write_plan().post_when(first, kAll, kAll, {.then = then}).value();
  const TriggeredTransfer denied = write_plan().post_when(second, kAll, kAll, {.then = then}).value();
  first.set();
  ASSERT_TRUE(comes_true([&] { return then.num_set() == 1; }));
  EXPECT_TRUE(region_.close(30s));
  second.set();
  ASSERT_TRUE(comes_true([&] { return !then.status().ok(); }));
  EXPECT_TRUE(then.wait(30s));
  EXPECT_FALSE(then.wait(30s));
}

// Ends a condition while it tells its listeners that it was set.
class Ending final : public engine::ConditionListener {
 public:
  explicit Ending(engine::Condition& condition) noexcept : condition_(condition) {}
  void on_set() noexcept override {
    has_seen_end = condition_.has_ended();
    condition_.end({ErrorCode::kCancelled, "by its listener"});
  }

  std::atomic<bool> has_seen_end{false};

 private:
  engine::Condition& condition_;
};

TEST_F(Conditions, that_end_while_they_are_announced_are_announced_again) {
  Condition ending = condition();
  engine::Condition& state = *ending.state();
  Ending listener(state);
  state.engine().exclusively([&] { state.add(listener); });
  ending.set();
  EXPECT_TRUE(comes_true([&] { return listener.has_seen_end.load(); }));
  state.engine().exclusively([&] { listener.unlink(); });
}

TEST_F(Conditions, may_be_dropped_with_their_transfers_at_any_moment) {
  for (int i = 0; i < 300; ++i) {
    auto held = std::make_shared<int>(0);
    const std::weak_ptr<int> gone = held;
    Condition begin = condition(), then = condition();
    {
      TriggeredTransfer sending =
          write_plan().post_when(begin, kAll, kAll, {.then = then, .owner = Owner::of(std::move(held))}).value();
      for (int k = 0; k < 3; ++k) begin.set();
      if (i % 3 == 0) {
        ASSERT_TRUE(then.wait(30s));
      } else if (i % 3 == 1) {
        sending.close();
        ASSERT_TRUE(comes_true([&] { return sending.released(); }));
      }
    }
    ASSERT_TRUE(comes_true([&] { return gone.expired(); }));
  }
}

TEST_F(Conditions, tell_threads_what_a_device_has_set) {
  Condition done = condition();
  const std::atomic_ref num_set(done.counts()->num_set_by_device);
  done.attach_device();
  std::thread kernel([&] {
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(1ms);
      Condition::expect(done.engine());
      num_set.fetch_add(1);
    }
  });
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(done.wait(30s));
  kernel.join();
  done.detach_device();
}

TEST_F(Conditions, reject_what_the_plan_rejects_and_long_notifications) {
  Condition begin = condition();
  const Plan plan = write_plan();
  const std::array<int32_t, 1> one{0}, outside{kBlocks};
  EXPECT_EQ(plan.post_when(begin, kAll, one).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(plan.post_when(begin, one, outside).status().code(), ErrorCode::kInvalidArgument);
  TriggerOptions options{.notification = std::string((1 << 16) + 1, 'x')};
  EXPECT_EQ(plan.post_when(begin, one, one, std::move(options)).status().code(), ErrorCode::kInvalidArgument);
}

TEST_F(Conditions, do_nothing_in_a_forked_child) {
  Condition begin = condition();
  TriggeredTransfer sending = write_plan().post_when(begin, kAll, kAll).value();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    begin.set();
    const bool was_set = begin.wait(10s);
    sending.close();
    const bool is_refused = write_plan().post_when(begin, kAll, kAll).status().code() == ErrorCode::kAborted;
    _exit(!was_set && is_refused ? 0 : 1);
  }
  int ended = 0;
  EXPECT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  begin.set();
  EXPECT_TRUE(comes_true([&] { return sending.num_finished() == 1; }));
}

}  // namespace
}  // namespace axon::library
