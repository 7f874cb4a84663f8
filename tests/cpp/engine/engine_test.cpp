// Tests complete engines with their background threads, with ranks as threads of this process, over UCX, with and
// without rings.
#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <thread>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

struct Setting {
  int num_ranks;
  transport::NetworkKind network;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const transport::NetworkKind& network : {transport::kUcxSharedMemory, transport::kRings, transport::kRails}) {
    for (const int num_ranks : {1, 2, 3}) all.push_back({num_ranks, network});
  }
  return all;
}

class EngineTest : public testing::TestWithParam<Setting> {
 protected:
  static int num_ranks() { return GetParam().num_ranks; }
  static size_t size() { return static_cast<size_t>(num_ranks()); }

  const std::unique_ptr<transport::Network> network_ = GetParam().network.make();
  Engines engines_{transports_of(*network_, size())};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("test");
};

INSTANTIATE_TEST_SUITE_P(Ranks, EngineTest, testing::ValuesIn(settings()), [](const auto& info) {
  return std::string(info.param.network.name) + "_" + std::to_string(info.param.num_ranks);
});

TEST_P(EngineTest, all_reduce_small_and_large_many_times) {
  on_all_ranks(size(), [&](int rank) {
    for (const size_t length : {1u, 2u, 1000u, 100'000u, 1u}) {
      for (int i = 0; i < 20; ++i) {
        std::vector<int32_t> values(length);
        std::iota(values.begin(), values.end(), rank + i);
        auto operation = TestOperation::all_reduce(values, 30s);
        ASSERT_TRUE(run(*group_[rank], *operation).ok()) << operation->status().message();
        const int n = num_ranks();
        for (size_t k = 0; k < length; ++k) {
          ASSERT_EQ(operation->data[k], n * (static_cast<int>(k) + i) + n * (n - 1) / 2);
        }
      }
    }
  });
}

TEST_P(EngineTest, asynchronous_operations_finish_without_a_waiter) {
  on_all_ranks(size(), [&](int rank) {
    std::vector<std::unique_ptr<TestOperation>> operations;
    for (int i = 0; i < 50; ++i) {
      operations.push_back(TestOperation::all_reduce(std::vector<int32_t>(5000, 1), 30s));
      group_[rank]->start(*operations.back());
    }
    const sync::Clock::time_point deadline = sync::Clock::now() + 30s;
    for (auto& operation : operations) {
      while (!operation->released.load() && sync::Clock::now() < deadline) std::this_thread::sleep_for(1ms);
      ASSERT_TRUE(operation->released.load());
      EXPECT_EQ(operation->data[4999], num_ranks());
    }
  });
}

TEST_P(EngineTest, several_groups_share_peers) {
  std::vector<std::vector<std::unique_ptr<Communicator>>> groups;
  for (int i = 0; i < 20; ++i) groups.push_back(engines_.form("group " + std::to_string(i)));
  on_all_ranks(size(), [&](int rank) {
    for (int i = 0; i < 40; ++i) {
      auto operation = TestOperation::all_reduce({1}, 30s);
      ASSERT_TRUE(run(*groups[static_cast<size_t>(i * 7 % 20)][rank], *operation).ok());
      EXPECT_EQ(operation->data[0], num_ranks());
    }
  });
}

TEST_P(EngineTest, sends_to_itself_match_by_tag) {
  Communicator& own = *group_[0];
  auto first = TestOperation::send({1, 2, 3}, 0, 7);
  auto large = TestOperation::send(std::vector<int32_t>(100'000, 5), 0, 8);
  own.start(*first);
  own.start(*large);
  auto received_large = TestOperation::receive(100'000, 0, 8);
  EXPECT_TRUE(run(own, *received_large).ok());
  EXPECT_EQ(received_large->data[99'999], 5);
  auto received = TestOperation::receive(3, messaging::kAnyRank, 7);
  EXPECT_TRUE(run(own, *received).ok());
  EXPECT_EQ(received->data, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(received->source(), 0);
  for (auto* operation : {first.get(), large.get()}) {
    EXPECT_TRUE(own.wait(*operation, sync::Clock::now() + 10s));
    await_release(*operation);
  }
}

// 16 threads per rank, each with its own group, use one engine concurrently.
TEST_P(EngineTest, threads_work_on_groups_of_their_own) {
  static constexpr int kNumThreads = 16;
  static constexpr int kNumRounds = 30;
  std::vector<std::vector<std::unique_ptr<Communicator>>> groups;
  for (int i = 0; i < kNumThreads; ++i) groups.push_back(engines_.form("group " + std::to_string(i)));
  on_all_ranks(size() * kNumThreads, [&](int index) {
    const int rank = index / kNumThreads;
    const int thread = index % kNumThreads;
    Communicator& group = *groups[static_cast<size_t>(thread)][static_cast<size_t>(rank)];
    for (int round = 0; round < kNumRounds; ++round) {
      const int next = (rank + 1) % num_ranks();
      const int before = (rank + num_ranks() - 1) % num_ranks();
      const auto num_elements = static_cast<size_t>(1 + (round * 7919 + thread) % 30'000);
      auto sent = TestOperation::send(std::vector<int32_t>(num_elements, 100 * thread + rank), next, 5);
      auto received = TestOperation::receive(num_elements, before, 5);
      auto reduced = TestOperation::all_reduce(std::vector<int32_t>(num_elements, rank + thread), 60s);
      auto shared = TestOperation::broadcast({rank, round}, round % num_ranks(), 60s);
      for (TestOperation* operation : {sent.get(), received.get(), reduced.get()}) group.start(*operation);
      ASSERT_TRUE(run(group, *shared).ok()) << shared->status().message();
      EXPECT_EQ(shared->data, (std::vector<int32_t>{round % num_ranks(), round}));
      for (TestOperation* operation : {reduced.get(), received.get(), sent.get()}) {
        ASSERT_TRUE(group.wait(*operation, sync::Clock::now() + 60s));
        ASSERT_TRUE(operation->status().ok()) << operation->status().message();
        await_release(*operation);
      }
      EXPECT_EQ(received->data, std::vector<int32_t>(num_elements, 100 * thread + before));
      const int sum = num_ranks() * (num_ranks() - 1) / 2 + num_ranks() * thread;
      EXPECT_EQ(reduced->data, std::vector<int32_t>(num_elements, sum));
    }
  });
}

class TwoRanks : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  // Messages that the other rank sent before it failed may still complete an operation here. The notice follows them.
  static Status first_failure(Communicator& communicator) {
    for (int i = 0; i < 3; ++i) {
      auto operation = TestOperation::all_reduce({1, 2}, 30s);
      if (!run(communicator, *operation).ok()) return operation->status().clone();
    }
    return Status(ErrorCode::kInternal, "three operations succeeded");
  }

  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 2)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("pair");
};

INSTANTIATE_TEST_SUITE_P(Networks, TwoRanks,
                         testing::Values(transport::kUcxSharedMemory, transport::kRings, transport::kRails),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TwoRanks, short_messages_take_a_ring_where_there_are_rings) {
  const auto send_one = [&] {
    on_all_ranks(2, [&](int rank) {
      auto operation = TestOperation::all_reduce({1}, 30s);
      ASSERT_TRUE(run(*group_[rank], *operation).ok());
    });
  };
  const auto has_ring = [&](int rank) {
    const std::vector<transport::Lane> lanes = group_[rank]->path_to(1 - rank).value().lanes;
    return std::ranges::count(lanes, "ring", &transport::Lane::name) == 1;
  };
  const bool expected = std::string(GetParam().name) == transport::kRings.name;
  const sync::Clock::time_point deadline = sync::Clock::now() + 30s;
  do {
    send_one();
  } while (expected && !(has_ring(0) && has_ring(1)) && sync::Clock::now() < deadline);
  EXPECT_EQ(has_ring(0), expected);
  EXPECT_EQ(has_ring(1), expected);
}

TEST_P(TwoRanks, mismatched_size_fails_both_naming_both) {
  on_all_ranks(2, [&](int rank) {
    auto operation = TestOperation::all_reduce(std::vector<int32_t>(rank == 0 ? 4 : 5), 30s);
    const Status& status = run(*group_[rank], *operation);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kMismatch);
    for (const char* part : {"all_reduce #1", "rank 0", "rank 1", "4", "5", "group 'pair'"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status.message();
    }
  });
}

TEST_P(TwoRanks, mismatch_is_found_though_neither_waits_for_the_other) {
  // Each rank is the root of its own broadcast, so each only sends. The next operation notices the mismatch.
  on_all_ranks(2, [&](int rank) {
    auto broadcast = TestOperation::broadcast({1}, rank, 30s);
    const bool first_ok = run(*group_[rank], *broadcast).ok();
    auto barrier = TestOperation::barrier(30s);
    const Status& second = run(*group_[rank], *barrier);
    EXPECT_FALSE(first_ok && second.ok());
    EXPECT_EQ(second.code(), ErrorCode::kMismatch) << second.message();
  });
}

TEST_P(TwoRanks, point_to_point_mismatch_fails_only_itself) {
  auto sent = TestOperation::send({1, 2, 3}, 1, 0);
  group_[0]->start(*sent);
  auto received = TestOperation::receive(2, 0, 0);
  const Status& status = run(*group_[1], *received);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_NE(status.message().find("3 elements"), std::string::npos) << status.message();
  EXPECT_TRUE(group_[0]->wait(*sent, sync::Clock::now() + 10s));
  await_release(*sent);
  on_all_ranks(2, [&](int rank) {
    auto operation = TestOperation::all_reduce({1}, 30s);
    EXPECT_TRUE(run(*group_[rank], *operation).ok());
  });
}

TEST_P(TwoRanks, timeout_names_ranks_that_have_not_entered) {
  on_all_ranks(2, [&](int rank) {
    auto operation = TestOperation::barrier(30s);
    ASSERT_TRUE(run(*group_[rank], *operation).ok());
  });
  auto operation = TestOperation::all_reduce({1, 2}, 200ms);
  const sync::Clock::time_point begin = sync::Clock::now();
  const Status& status = run(*group_[0], *operation);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_LT(sync::Clock::now() - begin, 5s);
  for (const char* part : {" Timed out ", "200 ms", "all_reduce #2 (int32[2], SUM)", "Not entered by: rank 1",
                           "last entered barrier #1, "}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status.message();
  }
  const Status reported = first_failure(*group_[1]);
  EXPECT_NE(reported.message().find("rank 0 reports"), std::string::npos) << reported.message();
}

TEST_P(TwoRanks, one_rank_may_be_hundreds_of_collectives_ahead) {
  static constexpr int kAhead = 600;
  std::vector<std::unique_ptr<TestOperation>> ahead;
  for (int i = 0; i < kAhead; ++i) {
    ahead.push_back(TestOperation::all_reduce({i}, 30s));
    group_[0]->start(*ahead.back());
  }
  for (int i = 0; i < kAhead; ++i) {
    auto operation = TestOperation::all_reduce({1}, 30s);
    ASSERT_TRUE(run(*group_[1], *operation).ok()) << operation->status().message();
    EXPECT_EQ(operation->data[0], i + 1);
  }
  for (auto& operation : ahead) {
    EXPECT_TRUE(group_[0]->wait(*operation, sync::Clock::now() + 10s));
    EXPECT_TRUE(operation->status().ok());
    await_release(*operation);
  }
}

TEST_P(TwoRanks, receive_that_times_out_leaves_the_group_whole) {
  auto missed = TestOperation::receive(1, 1, 3, 50ms);
  const Status& status = run(*group_[0], *missed);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_NE(status.message().find("receive from rank 1 (int32[1], tag 3): Timed out after 50 ms"), std::string::npos)
      << status.message();
  on_all_ranks(2, [&](int rank) {
    auto operation = TestOperation::all_reduce({1}, 30s);
    EXPECT_TRUE(run(*group_[rank], *operation).ok());
  });
}

TEST_P(TwoRanks, abort_ends_what_runs_here_and_there) {
  auto here = TestOperation::all_reduce({1, 2}, 30s);
  group_[0]->start(*here);
  group_[0]->abort("enough");
  group_[0]->abort("again");
  EXPECT_TRUE(group_[0]->wait(*here, sync::Clock::now() + 10s));
  await_release(*here);  // its first message may have waited for the ring
  EXPECT_EQ(here->status().code(), ErrorCode::kAborted);
  EXPECT_NE(here->status().message().find("enough"), std::string::npos);
  const Status reported = first_failure(*group_[1]);
  EXPECT_NE(reported.message().find("enough"), std::string::npos) << reported.message();
  auto after = TestOperation::receive(1, 1, 0);
  EXPECT_EQ(run(*group_[0], *after).code(), ErrorCode::kAborted);
}

TEST_P(TwoRanks, destroying_a_group_ends_what_runs_in_it) {
  auto operation = TestOperation::all_reduce({1}, 30s);
  group_[0]->start(*operation);
  group_[0].reset();
  EXPECT_TRUE(operation->finished());
  await_release(*operation);
  EXPECT_EQ(operation->status().code(), ErrorCode::kAborted);
}

// The receiver never asks for the data of a long message, so it stays in flight until the receiver refuses it.
TEST_P(TwoRanks, a_transfer_that_outlives_its_group_releases_its_operation) {
  auto operation = TestOperation::send(std::vector<int32_t>(100'000, 1), 1, 0);
  group_[0]->start(*operation);
  group_[0].reset();
  EXPECT_TRUE(operation->finished());
  EXPECT_EQ(operation->status().code(), ErrorCode::kAborted);
  group_[1].reset();
  await_release(*operation);
}

TEST_P(TwoRanks, a_transfer_in_flight_releases_its_operation_when_the_engine_ends) {
  auto operation = TestOperation::send(std::vector<int32_t>(100'000, 1), 1, 0);
  group_[0]->start(*operation);
  group_[0].reset();
  engines_[0].shut_down();
  await_release(*operation);
}

TEST_P(TwoRanks, a_collective_after_the_engines_end_fails_without_a_transport) {
  engines_[0].shut_down();
  auto late = TestOperation::all_reduce({1}, 30s);
  EXPECT_EQ(run(*group_[0], *late).code(), ErrorCode::kAborted);
}

TEST_P(TwoRanks, shut_down_engine_refuses_politely) {
  auto operation = TestOperation::all_reduce({1}, 30s);
  group_[0]->start(*operation);
  engines_[0].shut_down();
  engines_[0].shut_down();
  EXPECT_TRUE(operation->finished());
  auto late = TestOperation::all_reduce({1}, 30s);
  EXPECT_EQ(run(*group_[0], *late).code(), ErrorCode::kAborted);
  const OwnAddress own = engines_[0].make_address();
  EXPECT_FALSE(engines_[0].form({.name = "late", .rank = 0, .addresses = {own.address()}}).ok());
  EXPECT_EQ(engines_[0].check_room_for_group(2).code(), ErrorCode::kAborted);
  const sync::atomic<bool> never{false};
  EXPECT_FALSE(engines_[0].wait(never, sync::Clock::now() + 20ms));
}

}  // namespace
}  // namespace axon::engine
