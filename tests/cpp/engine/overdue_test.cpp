// Tests waiters that time out before their operation ends: they learn in time which ranks are missing, and the
// operation continues.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "engine/test_device.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class OverdueTest : public testing::TestWithParam<int> {
 protected:
  size_t size() const { return static_cast<size_t>(GetParam()); }
  int last() const { return GetParam() - 1; }

  void barrier_on_all() {
    on_all_ranks(size(), [&](int rank) {
      auto operation = TestOperation::barrier(30s);
      ASSERT_TRUE(run(*group_[rank], *operation).ok());
    });
  }

  // Returns the explanation, which takes less than a second and leaves the operation running.
  std::string explain(int rank, TestOperation& operation) {
    const sync::Clock::time_point begin = sync::Clock::now();
    const Status status = group_[rank]->explain(operation);
    EXPECT_LT(sync::Clock::now() - begin, 900ms);
    EXPECT_FALSE(operation.finished());
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kTimeout);
    return status.message();
  }

  void expect_success(int rank, TestOperation& operation) {
    EXPECT_TRUE(group_[rank]->wait(operation, sync::Clock::now() + 20s));
    EXPECT_TRUE(operation.status().ok()) << operation.status().message();
    await_release(operation);
  }

  transport::LoopbackFabric fabric_;
  Engines engines_{loopback_transports(fabric_, size())};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("test");
};

INSTANTIATE_TEST_SUITE_P(Ranks, OverdueTest, testing::Values(2, 3));

void expect_parts(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST_P(OverdueTest, collective_names_ranks_that_have_not_entered_and_succeeds_once_they_do) {
  barrier_on_all();
  std::vector<std::unique_ptr<TestOperation>> operations;
  for (int rank = 0; rank < last(); ++rank) {
    operations.push_back(TestOperation::all_reduce({rank, 2}, 30s));
    group_[rank]->start(*operations.back());
  }
  for (int rank = last() - 1; rank >= 0; --rank) {  // a rank that asks has entered; the last one sees all of them
    const std::string text = explain(rank, *operations[static_cast<size_t>(rank)]);
    if (rank != 0) continue;
    expect_parts(text, {"[rank 0 of group 'test'] all_reduce #2 (int32[2], SUM): Timed out in wait(timeout). ",
                        "Not entered by: rank " + std::to_string(last()) + " (last entered barrier #1, 0.",
                        " s ago). Entered by: rank 0 (last entered all_reduce #2 (int32[2], SUM), 0.",
                        "The operation goes on until its own timeout of 30000 ms."});
  }
  operations.push_back(TestOperation::all_reduce({last(), 2}, 30s));
  group_[last()]->start(*operations.back());
  for (int rank = 0; rank < GetParam(); ++rank) expect_success(rank, *operations[static_cast<size_t>(rank)]);
  EXPECT_EQ(operations[0]->data[1], 2 * GetParam());
  barrier_on_all();
}

TEST_P(OverdueTest, rank_that_does_not_answer_is_named_so) {
  auto operation = TestOperation::all_reduce({1}, 30s);
  group_[0]->start(*operation);
  group_[last()].reset();  // it has left the group without notice
  expect_parts(explain(0, *operation), {"rank " + std::to_string(last()) + " (does not answer)"});
  group_[0].reset();
  await_release(*operation);
}

TEST_P(OverdueTest, several_waiters_ask_at_a_time) {
  auto operation = TestOperation::all_reduce({1}, 30s);
  group_[0]->start(*operation);
  on_all_ranks(4, [&](int) {
    for (int i = 0; i < 5; ++i) {
      expect_parts(explain(0, *operation),
                   {"Not entered by: rank 1 (has called no collective yet)", "Still awaited here: rank "});
    }
  });
  on_all_ranks(size(), [&](int rank) {
    if (rank == 0) return expect_success(0, *operation);
    auto theirs = TestOperation::all_reduce({1}, 30s);
    EXPECT_TRUE(run(*group_[rank], *theirs).ok());
  });
}

TEST_P(OverdueTest, question_of_a_waiter_and_of_the_operations_own_timeout_do_not_disturb_each_other) {
  auto operation = TestOperation::all_reduce({1}, 400ms);
  group_[0]->start(*operation);
  int num_explained = 0;
  for (Status status; !operation->finished(); ++num_explained) {
    status = group_[0]->explain(*operation);
    if (!status.ok()) expect_parts(status.message(), {"Not entered by: rank 1 (has called no collective yet)"});
  }
  EXPECT_GT(num_explained, 1);
  expect_parts(operation->status().message(),
               {"Timed out after 400 ms. Not entered by: rank 1 (has called no collective yet)"});
  await_release(*operation);
}

TEST_P(OverdueTest, messages_between_two_name_the_other) {
  auto operation = TestOperation::receive(1, last(), 3);
  group_[0]->start(*operation);
  expect_parts(explain(0, *operation),
               {"receive from rank " + std::to_string(last()) + " (int32[1], tag 3): Timed out in wait(timeout). ",
                "Still awaited here: rank " + std::to_string(last()) + "."});
  auto theirs = TestOperation::send({5}, 0, 3);
  EXPECT_TRUE(run(*group_[last()], *theirs).ok());
  expect_success(0, *operation);
  EXPECT_EQ(operation->data[0], 5);
}

TEST_P(OverdueTest, operation_whose_inputs_are_not_there_says_so) {
  auto operation = TestOperation::all_reduce({1}, 30s);
  const TestDevice device(*operation, 1);
  group_[0]->start(*operation);
  expect_parts(
      explain(0, *operation),
      {"Not entered by: rank 1 ", "This rank's GPU has not reached this operation yet, so its inputs are not ready"});
  group_[0]->abort("enough");
  EXPECT_TRUE(group_[0]->wait(*operation, sync::Clock::now() + 10s));
  await_release(*operation);
}

TEST_P(OverdueTest, operation_that_ends_meanwhile_is_no_timeout) {
  auto operation = TestOperation::all_reduce({1}, 30s);
  group_[0]->start(*operation);
  std::vector<std::thread> others;
  for (int rank = 1; rank < GetParam(); ++rank) {
    others.emplace_back([this, rank] {
      auto theirs = TestOperation::all_reduce({1}, 30s);
      EXPECT_TRUE(run(*group_[rank], *theirs).ok());
    });
  }
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(group_[0]->wait(*operation, sync::Clock::now() + 20s));
  EXPECT_TRUE(group_[0]->explain(*operation).ok());
  await_release(*operation);
}

TEST_P(OverdueTest, operation_of_an_engine_that_has_shut_down_is_no_timeout) {
  auto operation = TestOperation::all_reduce({1}, 30s);
  group_[0]->start(*operation);
  engines_[0].shut_down();
  EXPECT_TRUE(group_[0]->explain(*operation).ok());
  EXPECT_EQ(operation->status().code(), ErrorCode::kAborted);
}

}  // namespace
}  // namespace axon::engine
