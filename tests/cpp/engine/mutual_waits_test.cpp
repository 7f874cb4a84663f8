// Tests ranks of which one waits in a collective of the host engine, and another one in a kernel.
#include "engine/mutual_waits.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "comes_true.hpp"
#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

// A GPU side that reports nothing.
class QuietHook final : public DeviceHook {
 public:
  void on_failed(const Status&) noexcept override {}
  void on_rank_lost(int, const Status&) noexcept override {}
  Status fault() noexcept override { return Status(); }
};

class MutualWaitsTest : public testing::Test {
 protected:
  // Two queries fit in.
  static constexpr auto kLongerThanTwoQueries = 5s;

  MutualWaitsTest() {
    for (size_t rank = 0; rank < 2; ++rank) {
      group_[rank]->set_device_hook(&hooks_[rank]);
      launch(rank);  // this thread launches kernels on both ranks
    }
  }
  ~MutualWaitsTest() override {
    for (const auto& communicator : group_) communicator->set_device_hook(nullptr);
  }

  void launch(size_t rank, Communicator::Launch launch = Communicator::Launch::kRuns) {
    group_[rank]->note_launch(*launched_, "some kernel", launch);
  }

  std::unique_ptr<TestOperation> enter_barrier(size_t rank) {
    auto barrier = TestOperation::barrier(30s);
    group_[rank]->start(*barrier);
    return barrier;
  }
  bool waits_on(size_t rank, TestOperation& operation, std::chrono::seconds time) {
    return !group_[rank]->wait(operation, sync::Clock::now() + time);
  }
  void expect_success(size_t rank, TestOperation& operation) {
    EXPECT_FALSE(waits_on(rank, operation, 20s));
    EXPECT_TRUE(operation.status().ok()) << operation.status().message();
    await_release(operation);
  }

  // Rank 0 enters the barrier in which rank 1 is.
  void finish(TestOperation& barrier) {
    expect_success(0, *enter_barrier(0));
    expect_success(1, barrier);
  }

  QuietHook hooks_[2];
  transport::LoopbackFabric fabric_;
  Engines engines_{loopback_transports(fabric_, 2)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("test");
  std::unique_ptr<TestOperation> launched_ = [] {
    auto operation = TestOperation::all_reduce({1, 2, 3}, 30s);
    operation->released.store(true);  // the engine never receives it
    return operation;
  }();
};

TEST_F(MutualWaitsTest, both_ranks_get_an_error_that_names_both_calls) {
  launch(0);
  const auto barrier = enter_barrier(1);
  ASSERT_FALSE(waits_on(1, *barrier, 20s));
  ASSERT_TRUE(comes_true([&] { return !group_[0]->failure().ok(); }));
  const Status failure = group_[0]->failure();
  for (const Status* status : {&barrier->status(), &failure}) {
    EXPECT_EQ(status->code(), ErrorCode::kMismatch);
    for (const char* part : {"mismatched collectives: rank 1 called barrier #1, which rank 0 has not entered",
                             "the GPU of rank 0 waits for a call that rank 1 has not made",
                             "Last entered: rank 0 (its GPU was last given all_reduce #2 (int32[3], SUM), "}) {
      EXPECT_NE(status->message().find(part), std::string::npos) << part << " in " << status->message();
    }
  }
  await_release(*barrier);
}

TEST_F(MutualWaitsTest, a_rank_that_is_merely_late_is_waited_for) {
  const auto barrier = enter_barrier(1);
  EXPECT_TRUE(waits_on(1, *barrier, kLongerThanTwoQueries));
  finish(*barrier);
}

TEST_F(MutualWaitsTest, a_thread_that_launches_no_kernels_may_wait_beside_one_that_does) {
  launch(0);
  const auto gathered = enter_barrier(1);
  std::thread([&] { EXPECT_TRUE(waits_on(1, *gathered, kLongerThanTwoQueries)); }).join();
  launch(1);
  finish(*gathered);
}

TEST_F(MutualWaitsTest, a_call_that_no_thread_waits_for_is_not_judged) {
  launch(0);
  const auto asynchronous = enter_barrier(1);
  std::this_thread::sleep_for(kLongerThanTwoQueries);
  EXPECT_TRUE(group_[1]->failure().ok());
  launch(1);
  finish(*asynchronous);
}

TEST_F(MutualWaitsTest, a_group_whose_kernels_several_threads_launch_goes_on) {
  std::thread([&] { launch(1); }).join();  // another thread, which may launch again
  launch(0);
  launch(0);
  const auto barrier = enter_barrier(1);
  EXPECT_TRUE(waits_on(1, *barrier, kLongerThanTwoQueries));
  launch(1);
  finish(*barrier);
}

TEST_F(MutualWaitsTest, a_launch_ends_a_suspicion) {
  launch(0);
  const auto barrier = enter_barrier(1);
  EXPECT_TRUE(waits_on(1, *barrier, 2s));  // the first answers have arrived
  launch(1);
  EXPECT_TRUE(waits_on(1, *barrier, kLongerThanTwoQueries));
  finish(*barrier);
}

TEST_F(MutualWaitsTest, captures_make_no_gpu_wait) {
  launch(0, Communicator::Launch::kIsCaptured);
  const auto barrier = enter_barrier(1);
  EXPECT_TRUE(waits_on(1, *barrier, kLongerThanTwoQueries));
  launch(1, Communicator::Launch::kIsCaptured);
  finish(*barrier);
}

}  // namespace
}  // namespace axon::engine
