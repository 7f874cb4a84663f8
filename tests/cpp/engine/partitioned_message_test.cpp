// Tests messages in partitions that are sent again and again from memory that a device fills, and received into memory
// that a device drains. Threads of the test stand in for the devices.
#include "engine/partitioned_message.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <thread>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kFirstTag = 1000;
constexpr size_t kPartition = 25;  // elements

// The memory that the engine and a device share.
struct SharedMemory {
  explicit SharedMemory(size_t num_partitions) : data(num_partitions * kPartition), flags(num_partitions + 1) {}

  std::vector<int32_t> data;
  std::vector<std::atomic<uint32_t>> flags;
  std::atomic<uint32_t> turn{0};
  std::atomic<uint32_t> has_failed{0};
};

// One rank's end, and what its device does.
class End {
 public:
  End(Communicator& communicator, bool is_sender, size_t num_partitions, std::chrono::milliseconds timeout = 10s)
      : memory_(std::make_shared<SharedMemory>(num_partitions)), num_partitions_(num_partitions) {
    if (is_sender) memory_->turn.store(1);
    static std::atomic<uint32_t> latest_id{0};
    auto opened = PartitionedMessage::open(communicator,
                                           {.trigger_id = ++latest_id,
                                            .is_sender = is_sender,
                                            .peer = 1 - communicator.rank(),
                                            .first_tag = kFirstTag,
                                            .dtype = DataType::kInt32,
                                            .partition_bytes = kPartition * sizeof(int32_t),
                                            .num_partitions = num_partitions,
                                            .timeout = timeout,
                                            .name = is_sender ? "prepared send" : "prepared recv"},
                                           {.data = reinterpret_cast<std::byte*>(memory_->data.data()),
                                            .flags = memory_->flags,
                                            .turn = &memory_->turn,
                                            .has_failed = &memory_->has_failed,
                                            .owner = memory_});
    EXPECT_TRUE(opened.ok());
    message_ = std::move(opened).value();
  }
  ~End() {
    if (message_) message_->release();
  }

  PartitionedMessage& message() { return *message_; }
  SharedMemory& memory() { return *memory_; }
  std::weak_ptr<PartitionedMessage> release() {
    message_->release();
    const std::weak_ptr<PartitionedMessage> released = message_;
    message_.reset();
    return released;
  }
  void start() { EXPECT_TRUE(message_->start().ok()); }

  // The device's part of a start: writes the partitions in a random order …
  void fill(int32_t first) {
    count_ = PartitionedMessage::next(count_);
    await([&] { return static_cast<int32_t>(memory_->turn.load() - count_) >= 0; });
    std::vector<size_t> order(num_partitions_);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random_);
    for (const size_t partition : order) make_ready(partition, first);
  }
  void make_ready(size_t partition, int32_t first) {
    const auto begin = memory_->data.begin() + static_cast<ptrdiff_t>(partition * kPartition);
    std::iota(begin, begin + kPartition, first + static_cast<int32_t>(partition * kPartition));
    memory_->flags[partition].store(count_, std::memory_order_release);
  }
  // … or reads them.
  void drain(int32_t first) {
    count_ = PartitionedMessage::next(count_);
    for (size_t partition = 0; partition < num_partitions_; ++partition) {
      await([&] { return memory_->flags[partition].load(std::memory_order_acquire) == count_; });
      for (size_t i = partition * kPartition; i < (partition + 1) * kPartition; ++i) {
        ASSERT_EQ(memory_->data[i], first + static_cast<int32_t>(i)) << "in start " << count_;
      }
    }
    memory_->turn.store(count_, std::memory_order_release);
  }

 private:
  template <typename Condition>
  void await(Condition is_met) {
    while (!is_met()) {
      ASSERT_EQ(memory_->has_failed.load(), 0u);
      std::this_thread::yield();
    }
  }

  std::shared_ptr<SharedMemory> memory_;
  const size_t num_partitions_;
  std::shared_ptr<PartitionedMessage> message_;
  uint32_t count_ = 0;
  std::mt19937 random_{7};
};

template <typename Condition>
void expect_soon(Condition is_met) {
  const auto deadline = sync::Clock::now() + 20s;
  while (!is_met() && sync::Clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(is_met());
}

class PartitionedMessageTest : public testing::Test {
 protected:
  Communicator& communicator(int rank) { return *group_[static_cast<size_t>(rank)]; }

  transport::LoopbackFabric fabric_;
  Engines engines_{loopback_transports(fabric_, 2)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("of partitions");
};

TEST_F(PartitionedMessageTest, every_start_sends_what_the_memory_holds_then) {
  for (const size_t num_partitions : {1, 2, 67}) {
    End sender(communicator(0), true, num_partitions);
    End receiver(communicator(1), false, num_partitions);
    on_all_ranks(2, [&](int rank) {
      for (int32_t step = 0; step < 300; ++step) {
        rank == 0 ? sender.start() : receiver.start();
        rank == 0 ? sender.fill(step) : receiver.drain(step);
      }
    });
  }
}

TEST_F(PartitionedMessageTest, the_host_may_be_many_starts_ahead_of_its_device) {
  constexpr int32_t kStarts = 40;
  End sender(communicator(0), true, 5);
  End receiver(communicator(1), false, 5);
  for (int32_t step = 0; step < kStarts; ++step) sender.start();
  for (int32_t step = 0; step < kStarts; ++step) receiver.start();
  on_all_ranks(2, [&](int rank) {
    for (int32_t step = 0; step < kStarts; ++step) rank == 0 ? sender.fill(step) : receiver.drain(step);
  });
}

TEST_F(PartitionedMessageTest, kernels_start_it_by_its_trigger) {
  End sender(communicator(0), true, 3);
  End receiver(communicator(1), false, 3);
  const auto trigger = [&](int rank, End& end) {
    Engine& engine = engines_[static_cast<size_t>(rank)];
    engine.exclusively([&] { end.message().trigger(); });
    engine.wake();
  };
  on_all_ranks(2, [&](int rank) {
    for (int32_t step = 0; step < 100; ++step) {
      End& end = rank == 0 ? sender : receiver;
      step % 3 == 0 ? end.start() : trigger(rank, end);
      rank == 0 ? end.fill(step) : end.drain(step);
    }
  });
}

TEST_F(PartitionedMessageTest, each_partition_is_a_message_of_its_own) {
  constexpr int kPartitions = 4;
  End sender(communicator(0), true, kPartitions);
  End receiver(communicator(0), false, kPartitions);
  sender.start();
  receiver.start();
  sender.fill(5);
  for (int partition = kPartitions - 1; partition >= 0; --partition) {
    const uint32_t tag = kFirstTag + static_cast<uint32_t>(partition);
    const auto received = TestOperation::receive(kPartition, 0, tag);
    ASSERT_TRUE(run(communicator(1), *received).ok());
    EXPECT_EQ(received->data.front(), 5 + partition * static_cast<int>(kPartition));
    const auto sent = TestOperation::send(received->data, 0, tag);
    ASSERT_TRUE(run(communicator(1), *sent).ok());
  }
  receiver.drain(5);
}

TEST_F(PartitionedMessageTest, a_failure_ends_the_device_and_the_group) {
  for (const bool is_sender : {false, true}) {
    const std::vector<std::unique_ptr<Communicator>> group = engines_.form("that fails");
    End end(*group[0], is_sender, 3, 300ms);
    end.start();
    if (is_sender) {
      group[1]->abort("for the test");
      expect_soon([&] { return group[0]->is_broken(); });
      end.fill(0);
    }
    expect_soon([&] { return end.memory().has_failed.load() != 0 && group[0]->is_broken(); });
    const std::string text = group[0]->failure().message();
    EXPECT_NE(text.find(is_sender ? "for the test" : "prepared recv, partition"), std::string::npos) << text;
    const std::string cause = is_sender ? "for the test" : "Timed out after 300 ms. Still awaited here: rank 1";
    EXPECT_NE(text.find(cause), std::string::npos) << text;
  }
}

TEST_F(PartitionedMessageTest, a_release_waits_for_what_has_been_started) {
  End sender(communicator(0), true, 3);
  End receiver(communicator(1), false, 3);
  sender.start();
  receiver.start();
  const auto sent = sender.release();
  const auto received = receiver.release();
  sender.fill(1);
  receiver.drain(1);
  expect_soon([&] { return sent.expired() && received.expired(); });
}

TEST_F(PartitionedMessageTest, a_closed_sender_sends_what_was_ready) {
  End sender(communicator(0), true, 3);
  sender.start();
  const auto sent = sender.release();
  sender.memory().flags[1].store(1, std::memory_order_release);
  sender.memory().flags[3].store(1, std::memory_order_release);  // its device has nothing more
  expect_soon([&] { return sent.expired(); });
  const auto received = TestOperation::receive(kPartition, 0, kFirstTag + 1);
  EXPECT_TRUE(run(communicator(1), *received).ok());
  EXPECT_FALSE(communicator(0).is_broken());
}

// A kernel of a queued launch has written its trigger, which the engine has not read yet.
TEST_F(PartitionedMessageTest, a_launch_that_is_found_at_the_release_still_runs) {
  std::array<std::atomic<uint32_t>, 8> entries{};
  std::atomic<uint32_t> num_taken{0};
  End sender(communicator(0), true, 3);
  End receiver(communicator(1), false, 3);
  receiver.start();
  std::weak_ptr<PartitionedMessage> sent;
  engines_[0].exclusively([&] {
    engines_[0].replays().watch({.entries = entries, .num_taken = num_taken});
    entries[0].store(sender.message().trigger_id());
    sent = sender.release();
  });
  sender.fill(4);
  receiver.drain(4);
  const auto received = receiver.release();
  expect_soon([&] { return sent.expired() && received.expired(); });
  engines_[0].shut_down();  // it reads the entries no more
}

TEST_F(PartitionedMessageTest, an_end_that_is_given_up_ends_what_waits_for_its_device) {
  for (const bool is_sender : {false, true}) {
    End end(communicator(0), is_sender, 3, 500ms);
    end.start();
    end.start();
    end.message().give_up();
    const auto released = end.release();
    expect_soon([&] { return released.expired(); });
    EXPECT_EQ(end.memory().has_failed.load(), 1u);
    EXPECT_FALSE(communicator(0).is_broken());
  }
}

TEST_F(PartitionedMessageTest, the_end_of_the_group_ends_a_released_start) {
  End sender(communicator(0), true, 3);
  sender.start();
  communicator(0).abort("for the test");
  const auto released = sender.release();
  expect_soon([&] { return released.expired(); });
}

TEST_F(PartitionedMessageTest, the_shut_down_of_the_engine_ends_the_device) {
  End sender(communicator(0), true, 3);
  End receiver(communicator(0), false, 3);
  sender.start();
  receiver.start();
  engines_[0].shut_down();
  EXPECT_EQ(sender.memory().has_failed.load(), 1u);
  EXPECT_EQ(receiver.memory().has_failed.load(), 1u);
}

TEST(PartitionedMessageCountTest, counts_leave_out_zero) {
  EXPECT_EQ(PartitionedMessage::next(0), 1u);
  EXPECT_EQ(PartitionedMessage::next(UINT32_MAX), 1u);
}

}  // namespace
}  // namespace axon::engine
