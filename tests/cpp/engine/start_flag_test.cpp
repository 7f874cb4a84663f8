// Tests operations whose inputs a device provides later, and the device hook, which fails together with its group.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "engine/device_hook.hpp"
#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class StartFlagTest : public testing::Test {
 protected:
  static constexpr int kRanks = 2;

  std::unique_ptr<TestOperation> start(int rank, int32_t value, const std::atomic<uint32_t>* start_flag = nullptr) {
    auto operation = TestOperation::all_reduce({value}, 5s);
    operation->start_flag = start_flag;
    group_[static_cast<size_t>(rank)]->start(*operation);
    return operation;
  }
  bool wait(int rank, TestOperation& operation, std::chrono::milliseconds timeout = 10s) {
    const bool finished = group_[static_cast<size_t>(rank)]->wait(operation, sync::Clock::now() + timeout);
    if (finished) await_release(operation);  // the thread that finished it still uses it
    return finished;
  }

  transport::LoopbackFabric fabric_;
  Engines engines_{loopback_transports(fabric_, kRanks)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("gated");
};

TEST_F(StartFlagTest, nothing_moves_before_the_start_flag_is_set) {
  std::atomic<uint32_t> start_flag{0};
  const auto flagged = start(0, 1, &start_flag);
  const auto other = start(1, 2);
  EXPECT_FALSE(wait(1, *other, 50ms));
  flagged->data[0] = 40;  // as if written by the device
  start_flag.store(1);
  EXPECT_TRUE(wait(1, *other));
  EXPECT_TRUE(wait(0, *flagged));
  EXPECT_EQ(flagged->data[0], 42);
  EXPECT_EQ(other->data[0], 42);
}

TEST_F(StartFlagTest, a_device_that_waits_is_told_of_success_and_failure) {
  std::atomic<uint32_t> done{0};
  for (const std::chrono::milliseconds timeout : {5000ms, 1ms}) {
    auto operation = TestOperation::all_reduce({1}, timeout);
    done.store(0);
    operation->done_flag = &done;
    group_[0]->start(*operation);
    EXPECT_EQ(done.load(), 0u);
    if (timeout > 1s) {
      EXPECT_TRUE(wait(1, *start(1, 1)));
    }
    EXPECT_TRUE(wait(0, *operation));
    EXPECT_EQ(done.load(), 1u);
    EXPECT_EQ(operation->status().ok(), timeout > 1s);
  }
}

TEST_F(StartFlagTest, the_background_thread_sees_a_start_flag_after_long_silence) {
  std::atomic<uint32_t> start_flag{0};
  const auto flagged = start(0, 1, &start_flag);
  const auto other = start(1, 2);
  std::this_thread::sleep_for(100ms);  // both engines sleep by now
  start_flag.store(1);
  while (!flagged->released.load() || !other->released.load())
    std::this_thread::sleep_for(1ms);  // no thread waits in the engine
  EXPECT_EQ(other->data[0], 3);
}

TEST_F(StartFlagTest, an_operation_after_a_closed_one_overtakes_it) {
  std::atomic<uint32_t> start_flag{0};
  const auto flagged = start(0, 1, &start_flag);
  const auto other = start(1, 2);
  const auto later = start(0, 10);
  const auto later_other = start(1, 20);
  EXPECT_TRUE(wait(0, *later));
  EXPECT_EQ(later->data[0], 30);
  start_flag.store(1);
  EXPECT_TRUE(wait(0, *flagged));
  EXPECT_TRUE(wait(1, *other));
  EXPECT_EQ(flagged->data[0], 3);
}

TEST_F(StartFlagTest, a_start_flag_that_is_never_set_ends_with_its_group) {
  const std::atomic<uint32_t> start_flag{0};
  const auto flagged = start(0, 1, &start_flag);
  group_[0]->abort("enough");
  EXPECT_TRUE(wait(0, *flagged, 1s));
  EXPECT_NE(flagged->status().message().find("enough"), std::string::npos);
}

// The other rank's message is here before the operation begins, so the mismatch is found before the flag is awaited.
TEST_F(StartFlagTest, a_mismatch_ends_an_operation_whose_start_flag_is_never_set) {
  const auto other = start(1, 2);
  EXPECT_FALSE(wait(1, *other, 50ms));
  const std::atomic<uint32_t> start_flag{0};
  auto flagged = TestOperation::all_reduce({1, 2}, 5s);
  flagged->start_flag = &start_flag;
  group_[0]->start(*flagged);
  EXPECT_TRUE(wait(0, *flagged, 2s));
  EXPECT_EQ(flagged->status().code(), ErrorCode::kMismatch) << flagged->status().message();
  EXPECT_TRUE(wait(1, *other));
}

TEST_F(StartFlagTest, a_start_flag_that_is_never_set_times_out) {
  const std::atomic<uint32_t> start_flag{0};
  auto flagged = TestOperation::all_reduce({1}, 50ms);
  flagged->start_flag = &start_flag;
  group_[0]->start(*flagged);
  EXPECT_TRUE(wait(0, *flagged));
  EXPECT_EQ(flagged->status().code(), ErrorCode::kTimeout);
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

TEST_F(StartFlagTest, a_device_hooks_fault_ends_the_collectives_of_all_ranks) {
  Recorder recorders[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) group_[static_cast<size_t>(rank)]->set_device_hook(&recorders[rank]);
  const auto running = start(1, 1);
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

TEST_F(StartFlagTest, a_device_hooks_timeout_says_what_every_rank_was_given_last) {
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

TEST_F(StartFlagTest, beside_a_device_hook_a_late_message_without_a_tag_says_where_it_may_be) {
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

TEST_F(StartFlagTest, a_device_hooks_timeout_is_explained_to_callbacks_of_the_background_thread_too) {
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  Asker asker(*group_[0], recorder);
  group_[0]->start(asker);
  const auto theirs = TestOperation::barrier(30s);
  group_[1]->start(*theirs);
  while (!asker.released.load()) std::this_thread::yield();
  EXPECT_TRUE(asker.was_in_background);
  EXPECT_EQ(asker.failure.code(), ErrorCode::kTimeout);
  EXPECT_EQ(asker.failure.message().find("does not answer"), std::string::npos) << asker.failure.message();
  EXPECT_TRUE(wait(1, *theirs));
  group_[0]->set_device_hook(nullptr);
}

TEST_F(StartFlagTest, a_device_hooks_fault_after_the_engines_end_is_not_reported) {
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  engines_[0].shut_down();
  recorder.late.store(true);
  EXPECT_EQ(group_[0]->failure().code(), ErrorCode::kAborted);
  group_[0]->set_device_hook(nullptr);
}

TEST_F(StartFlagTest, a_device_hook_that_comes_late_hears_of_the_failure_at_once) {
  group_[0]->abort("enough");
  Recorder recorder;
  group_[0]->set_device_hook(&recorder);
  EXPECT_EQ(recorder.message, "enough");
  group_[0]->set_device_hook(nullptr);
}

}  // namespace
}  // namespace axon::engine
