// Tests operations on a device, which pass through host memory in segments, long messages, and the device hook, which
// fails together with its group.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "engine/device_hook.hpp"
#include "engine/test_device.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class DeviceSegmentsTest : public testing::Test {
 protected:
  static constexpr int kRanks = 3;

  // An operation on a device, or on the CPU.
  struct Call {
    std::unique_ptr<TestOperation> operation;
    std::unique_ptr<TestDevice> device;
  };

  Call start(int rank, std::unique_ptr<TestOperation> operation, size_t num_segments = 1) {
    Call call{std::move(operation), nullptr};
    call.device = std::make_unique<TestDevice>(*call.operation, num_segments);
    communicator(rank).start(*call.operation);
    return call;
  }
  Call start(int rank, int32_t value) { return start(rank, TestOperation::all_reduce({value}, 5s)); }
  std::unique_ptr<TestOperation> start_on_cpu(int rank, std::unique_ptr<TestOperation> operation) {
    communicator(rank).start(*operation);
    return operation;
  }
  std::unique_ptr<TestOperation> start_on_cpu(int rank, int32_t value) {
    return start_on_cpu(rank, TestOperation::all_reduce({value}, 5s));
  }
  bool wait(int rank, TestOperation& operation, std::chrono::milliseconds timeout = 20s) {
    const bool finished = communicator(rank).wait(operation, sync::Clock::now() + timeout);
    if (finished) await_release(operation);  // the thread that finished it still uses it
    return finished;
  }
  Communicator& communicator(int rank) { return *group_[static_cast<size_t>(rank)]; }

  transport::LoopbackFabric fabric_;
  Engines engines_{loopback_transports(fabric_, kRanks)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("on devices");
};

std::vector<int32_t> numbers(size_t count, int32_t first) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// More than two segments.
constexpr size_t kLong = 5 * SegmentedExchange::segment_bytes(0) / 2 / sizeof(int32_t) + 3;

TEST_F(DeviceSegmentsTest, nothing_moves_before_the_device_has_filled_the_slot) {
  const Call late = start(0, 1);
  const auto other = start_on_cpu(1, 2);
  const auto third = start_on_cpu(2, 0);
  EXPECT_FALSE(wait(1, *other, 50ms));
  late.operation->data[0] = 40;
  late.device->run();
  EXPECT_TRUE(wait(1, *other) && wait(2, *third) && wait(0, *late.operation));
  for (TestOperation* each : {late.operation.get(), other.get(), third.get()}) EXPECT_EQ(each->data[0], 42);
}

TEST_F(DeviceSegmentsTest, segments_of_a_collective_pass_through_few_slots) {
  for (const size_t num_segments : {1, 2, 4, 5, 23}) {
    std::vector<Call> calls;
    for (int rank = 0; rank < kRanks; ++rank) {
      calls.push_back(start(rank, TestOperation::all_reduce(numbers(10'000, rank), 20s), num_segments));
    }
    on_all_ranks(kRanks, [&](int rank) { calls[static_cast<size_t>(rank)].device->run(); });
    for (int rank = 0; rank < kRanks; ++rank) {
      TestOperation& operation = *calls[static_cast<size_t>(rank)].operation;
      EXPECT_TRUE(wait(rank, operation));
      EXPECT_TRUE(operation.status().ok()) << operation.status().message();
      for (size_t i = 0; i < operation.data.size(); ++i) ASSERT_EQ(operation.data[i], 3 * static_cast<int32_t>(i) + 3);
    }
  }
}

TEST_F(DeviceSegmentsTest, ranks_that_divide_a_collective_differently_learn_of_it) {
  const Call divided = start(0, TestOperation::all_reduce(numbers(1000, 0), 20s), 2);
  const auto whole = start_on_cpu(1, TestOperation::all_reduce(numbers(1000, 0), 20s));
  const auto also_whole = start_on_cpu(2, TestOperation::all_reduce(numbers(1000, 0), 20s));
  divided.device->run();
  EXPECT_TRUE(divided.device->has_failed());
  EXPECT_TRUE(wait(0, *divided.operation) && wait(1, *whole) && wait(2, *also_whole));
  EXPECT_EQ(divided.operation->status().code(), ErrorCode::kMismatch);
}

// By source: from a device or the CPU, to a device or the CPU, with the source's rank or any.
TEST_F(DeviceSegmentsTest, long_messages_go_from_and_to_devices_and_the_cpu) {
  for (const bool from_device : {false, true}) {
    for (const bool to_device : {false, true}) {
      for (const int source : {1, messaging::kAnyRank}) {
        auto send = TestOperation::send(numbers(kLong, 7), 0, 5);
        auto receive = TestOperation::receive(kLong, source, 5);
        std::optional<TestDevice> sender;
        std::optional<TestDevice> receiver;
        if (from_device) sender.emplace(*send, 1, 2);
        if (to_device) receiver.emplace(*receive, 1, 2);
        communicator(0).start(*receive);
        communicator(1).start(*send);
        std::thread filling([&] {
          for (size_t segment = 0; sender && segment < sender->count(); ++segment) sender->fill(segment);
        });
        if (receiver) receiver->run();
        EXPECT_TRUE(wait(0, *receive) && wait(1, *send));
        filling.join();
        EXPECT_TRUE(receive->status().ok()) << receive->status().message();
        EXPECT_EQ(receive->data, send->data);
        EXPECT_EQ(receive->source(), 1);
      }
    }
  }
}

// The later segments of a message never match a receive of another message, in whatever order the ranks send.
TEST_F(DeviceSegmentsTest, long_messages_of_one_tag_are_told_apart) {
  std::vector<std::unique_ptr<TestOperation>> sends;
  std::vector<std::unique_ptr<TestOperation>> receives;
  for (const int source : {1, 2, 1, 2}) {
    const auto first = static_cast<int32_t>(1'000'000'000 + sends.size() * 100'000'000);
    sends.push_back(start_on_cpu(source, TestOperation::send(numbers(kLong, first), 0, 5)));
  }
  for (const int source : {messaging::kAnyRank, 1, messaging::kAnyRank, messaging::kAnyRank}) {
    receives.push_back(start_on_cpu(0, TestOperation::receive(kLong, source, 5)));
  }
  for (const auto& receive : receives) EXPECT_TRUE(wait(0, *receive));
  for (size_t i = 0; i < sends.size(); ++i) EXPECT_TRUE(wait(i % 2 == 0 ? 1 : 2, *sends[i]));
  std::set<int32_t> firsts;
  for (const auto& receive : receives) {
    ASSERT_TRUE(receive->status().ok()) << receive->status().message();
    ASSERT_EQ(receive->data, numbers(kLong, receive->data[0]));
    firsts.insert(receive->data[0]);
  }
  EXPECT_EQ(firsts.size(), sends.size());
}

TEST_F(DeviceSegmentsTest, a_long_message_of_another_length_is_a_mismatch) {
  const auto send = start_on_cpu(1, TestOperation::send(numbers(kLong, 0), 0, 5));
  const auto receive = start_on_cpu(0, TestOperation::receive(kLong + 1, 1, 5));
  EXPECT_TRUE(wait(0, *receive) && wait(1, *send));
  EXPECT_EQ(receive->status().code(), ErrorCode::kMismatch) << receive->status().message();
  EXPECT_FALSE(send->status().ok());
}

// The receiver of a short message refuses the first segment of a long one, and then the others, which the sender holds.
TEST_F(DeviceSegmentsTest, a_long_message_for_a_short_receive_is_a_mismatch) {
  const auto send = start_on_cpu(1, TestOperation::send(numbers(kLong, 0), 0, 5));
  const auto receive = start_on_cpu(0, TestOperation::receive(3, 1, 5));
  EXPECT_TRUE(wait(0, *receive) && wait(1, *send));
  EXPECT_EQ(receive->status().code(), ErrorCode::kMismatch) << receive->status().message();
  EXPECT_FALSE(send->status().ok());
}

TEST_F(DeviceSegmentsTest, messages_of_one_tag_keep_their_order_whatever_device_is_late) {
  const Call first = start(1, TestOperation::send({1}, 0, 5));
  const auto second = start_on_cpu(1, TestOperation::send({2}, 0, 5));
  const Call third = start(1, TestOperation::send({3}, 0, 5));
  const auto of_other_tag = start_on_cpu(1, TestOperation::send({9}, 0, 6));
  std::vector<std::unique_ptr<TestOperation>> receives;
  for (int i = 0; i < 3; ++i) receives.push_back(start_on_cpu(0, TestOperation::receive(1, 1, 5)));
  const auto other = start_on_cpu(0, TestOperation::receive(1, 1, 6));
  EXPECT_TRUE(wait(0, *other) && wait(1, *of_other_tag)) << "it waits for no message of another tag";
  third.device->fill(0);
  EXPECT_FALSE(wait(0, *receives[0], 50ms));
  first.device->fill(0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(wait(0, *receives[static_cast<size_t>(i)]));
    EXPECT_EQ(receives[static_cast<size_t>(i)]->data[0], i + 1);
  }
  EXPECT_TRUE(wait(1, *first.operation) && wait(1, *second) && wait(1, *third.operation));
}

TEST_F(DeviceSegmentsTest, messages_that_wait_for_their_turn_end_with_their_group) {
  const Call first = start(1, TestOperation::send({1}, 0, 5));
  const auto second = start_on_cpu(1, TestOperation::send({2}, 0, 5));
  const auto third = start_on_cpu(1, TestOperation::send(numbers(kLong, 0), 0, 5));
  EXPECT_FALSE(wait(1, *second, 50ms));
  group_[1]->abort("enough");
  for (TestOperation* send : {first.operation.get(), second.get(), third.get()}) {
    EXPECT_TRUE(wait(1, *send));
    EXPECT_NE(send->status().message().find("enough"), std::string::npos) << send->status().message();
  }
}

TEST_F(DeviceSegmentsTest, a_send_that_times_out_gives_its_turn_to_the_next) {
  auto late = TestOperation::send({1}, 0, 5);
  late->timeout = 50ms;
  const Call first = start(1, std::move(late));
  const auto second = start_on_cpu(1, TestOperation::send({2}, 0, 5));
  const auto receive = start_on_cpu(0, TestOperation::receive(1, 1, 5));
  EXPECT_TRUE(wait(0, *receive) && wait(1, *second) && wait(1, *first.operation));
  EXPECT_EQ(receive->data[0], 2);
  EXPECT_EQ(first.operation->status().code(), ErrorCode::kTimeout);
}

TEST_F(DeviceSegmentsTest, a_receiver_that_leaves_ends_a_long_message_of_a_device) {
  const Call send = start(1, TestOperation::send(numbers(kLong, 0), 0, 5));
  send.device->fill(0);
  group_[0].reset();
  EXPECT_TRUE(wait(1, *send.operation));
  EXPECT_FALSE(send.operation->status().ok());
  EXPECT_TRUE(send.device->has_failed());
}

TEST_F(DeviceSegmentsTest, a_sender_that_leaves_within_a_long_message_ends_its_receive) {
  const Call send = start(1, TestOperation::send(numbers(kLong, 0), 0, 5));
  const auto receive = start_on_cpu(0, TestOperation::receive(kLong, 1, 5));
  send.device->fill(0);
  EXPECT_FALSE(wait(0, *receive, 50ms));
  group_[1]->abort("enough");
  EXPECT_TRUE(wait(0, *receive) && wait(1, *send.operation));
  EXPECT_NE(receive->status().message().find("rank 1"), std::string::npos) << receive->status().message();
}

TEST_F(DeviceSegmentsTest, the_background_thread_sees_a_filled_slot_after_long_silence) {
  std::vector<Call> calls;
  for (int rank = 0; rank < kRanks; ++rank) calls.push_back(start(rank, 1));
  std::this_thread::sleep_for(100ms);  // the engines sleep by now
  for (const Call& call : calls) call.device->fill(0);
  for (const Call& call : calls) EXPECT_TRUE(call.device->take(0));  // no thread waits in the engine
  for (const Call& call : calls) {
    await_release(*call.operation);
    EXPECT_EQ(call.operation->data[0], kRanks);
  }
}

TEST_F(DeviceSegmentsTest, a_later_operation_overtakes_one_that_waits_for_its_device) {
  const Call late = start(0, 1);
  const auto other = start_on_cpu(1, 2);
  const auto third = start_on_cpu(2, 3);
  const std::unique_ptr<TestOperation> later[] = {start_on_cpu(0, 10), start_on_cpu(1, 20), start_on_cpu(2, 30)};
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(wait(rank, *later[rank]));
  EXPECT_EQ(later[0]->data[0], 60);
  late.device->run();
  EXPECT_TRUE(wait(0, *late.operation) && wait(1, *other) && wait(2, *third));
  EXPECT_EQ(late.operation->data[0], 6);
}

TEST_F(DeviceSegmentsTest, an_operation_whose_device_never_fills_a_slot_ends_with_its_group) {
  const Call late = start(0, 1);
  group_[0]->abort("enough");
  EXPECT_TRUE(wait(0, *late.operation, 5s));
  EXPECT_NE(late.operation->status().message().find("enough"), std::string::npos);
  EXPECT_TRUE(late.device->has_failed());
}

// The other rank's message is here before the operation begins, so the mismatch is found before the device is awaited.
TEST_F(DeviceSegmentsTest, a_mismatch_ends_an_operation_whose_device_never_fills_a_slot) {
  const auto other = start_on_cpu(1, 2);
  EXPECT_FALSE(wait(1, *other, 50ms));
  const Call late = start(0, TestOperation::all_reduce({1, 2}, 5s));
  EXPECT_TRUE(wait(0, *late.operation, 5s));
  EXPECT_EQ(late.operation->status().code(), ErrorCode::kMismatch) << late.operation->status().message();
  EXPECT_TRUE(wait(1, *other));
}

TEST_F(DeviceSegmentsTest, a_slot_that_is_never_filled_times_out) {
  const Call late = start(0, TestOperation::all_reduce({1}, 50ms));
  EXPECT_TRUE(wait(0, *late.operation));
  EXPECT_EQ(late.operation->status().code(), ErrorCode::kTimeout);
}

class Recorder final : public DeviceHook {
 public:
  void on_failed(const Status& reason) noexcept override {
    message = reason.message();
    num_failures.fetch_add(1);
  }
  void on_rank_lost(int, const Status&) noexcept override {}
  Status fault() noexcept override {
    if (late.load()) return Status(ErrorCode::kTimeout, "Timed out on the device.");
    return broken.load() ? Status(ErrorCode::kMismatch, "the device disagrees") : Status();
  }

  std::atomic<bool> broken{false};
  std::atomic<bool> late{false};
  std::atomic<int> num_failures{0};
  std::string message;  // written before num_failures
};

TEST_F(DeviceSegmentsTest, a_device_hooks_fault_ends_the_collectives_of_all_ranks) {
  Recorder recorders[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) group_[static_cast<size_t>(rank)]->set_device_hook(&recorders[rank]);
  const auto running = start_on_cpu(1, 1);
  recorders[0].broken.store(true);
  EXPECT_TRUE(wait(1, *running));
  EXPECT_NE(running->status().message().find("the device disagrees"), std::string::npos);
  for (Recorder& recorder : recorders) {
    const sync::Clock::time_point deadline = sync::Clock::now() + 10s;  // the other rank may have been notified first
    while (recorder.num_failures.load() == 0 && sync::Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(recorder.num_failures.load(), 1);
    EXPECT_NE(recorder.message.find("the device disagrees"), std::string::npos);
  }
  for (const auto& communicator : group_) communicator->set_device_hook(nullptr);
}

TEST_F(DeviceSegmentsTest, a_device_hooks_timeout_says_what_every_rank_was_given_last) {
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  auto operation = TestOperation::all_reduce({1, 2, 3}, 30s);
  group_[0]->note_launch(*operation, "some kernel");
  group_[0]->note_launch(*operation, "some kernel");
  operation->released.store(true);  // the engine never received the operation
  recorder.late.store(true);
  const Status failure = group_[0]->failure();
  EXPECT_EQ(failure.code(), ErrorCode::kTimeout);
  for (const char* part :
       {"Timed out on the device. Last entered: rank 0 (its GPU was last given all_reduce #2 (int32[3], SUM), 0.",
        "rank 1 (has called no collective yet)"}) {
    EXPECT_NE(failure.message().find(part), std::string::npos) << failure.message();
  }
  EXPECT_EQ(recorder.num_failures.load(), 1);
  group_[0]->set_device_hook(nullptr);
}

TEST_F(DeviceSegmentsTest, beside_a_device_hook_a_late_message_without_a_tag_says_where_it_may_be) {
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  for (const uint32_t tag : {0u, 1u}) {
    auto receive = TestOperation::receive(3, 1, tag, 50ms);
    const std::string text = run(*group_[0], *receive).message();
    EXPECT_EQ(text.find("CPU and CUDA tensors meet under tags other than 0.") != std::string::npos, tag == 0) << text;
    await_release(*receive);
  }
  group_[0]->set_device_hook(nullptr);
}

// A barrier whose callback finds that the device hook has failed already.
class Asker final : public Operation {
 public:
  Asker(Communicator& communicator, Recorder& device_hook) : communicator_(communicator), device_hook_(device_hook) {
    arguments.kind = transport::OperationKind::kBarrier;
    arguments.dtype = DataType::kInt32;
    timeout = 30s;
  }
  ~Asker() override = default;

  std::atomic<bool> released{false};
  bool was_in_background = false;
  Status failure;  // both are written before `released`

 private:
  void on_finished() noexcept override {
    was_in_background = Progress::is_background();
    device_hook_.late.store(true);
    failure = communicator_.failure();
  }
  void on_released() noexcept override { released.store(true); }

  Communicator& communicator_;
  Recorder& device_hook_;
};

TEST_F(DeviceSegmentsTest, a_device_hooks_timeout_is_explained_to_callbacks_of_the_background_thread_too) {
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  Asker asker(*group_[0], recorder);
  group_[0]->start(asker);
  const auto theirs = TestOperation::barrier(1s);
  group_[1]->start(*theirs);
  while (!asker.released.load()) std::this_thread::yield();
  EXPECT_TRUE(asker.was_in_background);
  EXPECT_EQ(asker.failure.code(), ErrorCode::kTimeout);
  EXPECT_EQ(asker.failure.message().find("does not answer"), std::string::npos) << asker.failure.message();
  EXPECT_TRUE(wait(1, *theirs));
  group_[0]->set_device_hook(nullptr);
}

TEST_F(DeviceSegmentsTest, a_device_hooks_fault_after_the_engines_end_is_not_reported) {
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  engines_[0].shut_down();
  recorder.late.store(true);
  EXPECT_EQ(group_[0]->failure().code(), ErrorCode::kAborted);
  group_[0]->set_device_hook(nullptr);
}

TEST_F(DeviceSegmentsTest, a_device_hook_that_comes_late_hears_of_the_failure_at_once) {
  group_[0]->abort("enough");
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  EXPECT_EQ(recorder.message, "enough");
  group_[0]->set_device_hook(nullptr);
}

}  // namespace
}  // namespace axon::engine
