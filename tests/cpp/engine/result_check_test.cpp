// Tests that ranks find out whose result of a collective differs, and say so.
#include "engine/result_check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/scoped_variable.hpp"
#include "comes_true.hpp"
#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;
using Operations = std::vector<std::unique_ptr<TestOperation>>;
using MakeOperation = std::function<std::unique_ptr<TestOperation>(int rank)>;

class ResultCheckTest : public testing::Test {
 protected:
  static constexpr size_t kNumRanks = 4;

  static Operations run_all(const std::vector<std::unique_ptr<Communicator>>& group, const MakeOperation& make) {
    Operations operations;
    for (size_t rank = 0; rank < group.size(); ++rank) operations.push_back(make(static_cast<int>(rank)));
    on_all_ranks(group.size(), [&](int rank) {
      const auto index = static_cast<size_t>(rank);
      run(*group[index], *operations[index]);
    });
    return operations;
  }

  static std::unique_ptr<TestOperation> all_reduce(int rank) { return TestOperation::all_reduce({1, 2, rank}, 10s); }
  static std::unique_ptr<TestOperation> broadcast(int rank) {
    return TestOperation::broadcast({1, 2, rank == 0 ? 3 : 0}, 0, 10s);
  }

  // Returns the ranks whose data is not that of most ranks.
  static std::vector<int> odd_ones(const Operations& operations) {
    std::vector<int> odd;
    for (size_t rank = 0; rank < operations.size(); ++rank) {
      const auto is_same = [&](const auto& other) { return other->data == operations[rank]->data; };
      const auto num_alike = static_cast<size_t>(std::ranges::count_if(operations, is_same));
      if (2 * num_alike <= operations.size()) odd.push_back(static_cast<int>(rank));
    }
    return odd;
  }

  const ScopedVariable check_results_{"AXON_CHECK_RESULTS", "1"};
};

TEST_F(ResultCheckTest, rank_whose_result_differs_is_named_on_all_ranks) {
  size_t num_single = 0;
  for (const auto& make : {&ResultCheckTest::all_reduce, &ResultCheckTest::broadcast}) {
    for (uint64_t corrupting = 1; corrupting <= 8; ++corrupting) {
      transport::LoopbackFabric fabric({.corrupting_send = corrupting});
      Engines engines(loopback_transports(fabric, kNumRanks));
      const auto group = engines.form("test");
      const Operations operations = run_all(group, make);
      for (const auto& operation : operations) ASSERT_TRUE(operation->status().ok()) << operation->status().message();
      const std::vector<int> odd = odd_ones(operations);
      if (odd.empty()) continue;  // the message came later than this, or all ranks got the bit
      for (const auto& member : group) ASSERT_TRUE(comes_true([&] { return member->is_broken(); })) << corrupting;
      for (const auto& member : group) {
        const Status failure = member->failure();
        EXPECT_EQ(failure.code(), ErrorCode::kMismatch);
        const std::string name = odd.size() == 1 ? "differ: rank " + std::to_string(odd[0]) + " has other bits than"
                                                 : "it is not known which ones are wrong";
        EXPECT_NE(failure.message().find(name), std::string::npos) << failure.message();
        EXPECT_NE(failure.message().find(" #1 (int32[3]"), std::string::npos) << failure.message();
      }
      num_single += odd.size() == 1;
    }
  }
  EXPECT_GE(num_single, 3u);
}

TEST_F(ResultCheckTest, two_ranks_cannot_tell_which_one_is_wrong) {
  transport::LoopbackFabric fabric({.corrupting_send = 1});
  Engines engines(loopback_transports(fabric, 2));
  const auto group = engines.form("test");
  const Operations operations = run_all(group, &ResultCheckTest::broadcast);
  ASSERT_NE(operations[0]->data, operations[1]->data);
  for (const auto& member : group) {
    ASSERT_TRUE(comes_true([&] { return member->is_broken(); }));
    const std::string text = member->failure().message();
    EXPECT_TRUE(text.find("differ: rank 0 | rank 1. ") != std::string::npos ||
                text.find("differ: rank 1 | rank 0. ") != std::string::npos)
        << text;
    EXPECT_NE(text.find("it is not known which ones are wrong"), std::string::npos) << text;
  }
}

TEST_F(ResultCheckTest, equal_results_cost_no_failure_however_many_are_in_flight) {
  transport::LoopbackFabric fabric({.seed = 5, .pending = 0.2, .delay = 0.3, .longest_delay = 20, .reorder = 0.3});
  Engines engines(loopback_transports(fabric, kNumRanks));
  const auto group = engines.form("test");
  static constexpr int kNumCalls = 600;  // more than one message holds
  std::vector<Operations> by_rank(kNumRanks);
  on_all_ranks(kNumRanks, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    for (int i = 0; i < kNumCalls; ++i) {
      by_rank[index].push_back(i % 2 == 0 ? all_reduce(rank) : broadcast(rank));
      group[index]->start(*by_rank[index].back());
    }
    for (const auto& operation : by_rank[index]) {
      ASSERT_TRUE(group[index]->wait(*operation, sync::Clock::now() + 20s));
      EXPECT_TRUE(operation->status().ok()) << operation->status().message();
    }
  });
  for (const auto& member : group) EXPECT_TRUE(member->failure().ok()) << member->failure().message();
  for (const Operations& operations : by_rank) {
    for (const auto& operation : operations) await_release(*operation);
  }
}

TEST_F(ResultCheckTest, groups_without_the_setting_check_nothing) {
  unsetenv("AXON_CHECK_RESULTS");
  transport::LoopbackFabric fabric({.corrupting_send = 1});
  Engines engines(loopback_transports(fabric, kNumRanks));
  const auto group = engines.form("test");
  ASSERT_FALSE(odd_ones(run_all(group, &ResultCheckTest::all_reduce)).empty());
  for (int i = 0; i < 20; ++i) run_all(group, &ResultCheckTest::all_reduce);
  for (const auto& member : group) EXPECT_TRUE(member->failure().ok());
}

TEST(DigestTest, every_changed_bit_changes_it) {
  std::vector<std::byte> data(43);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37);
  const uint64_t digest = digest_of(data.data(), data.size(), 0);
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_NE(digest_of(data.data(), data.size(), 0), digest) << bit;
    data[bit / 8] ^= std::byte{1} << bit % 8;
  }
  EXPECT_EQ(digest_of(data.data(), data.size(), 0), digest);
}

// The low half of this word is multiplied by 1 or by 3.
TEST(DigestTest, every_changed_bit_of_a_word_that_its_key_cancels_changes_it) {
  const uint64_t word = digest_key(0) ^ uint64_t { 1 } << 32;
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(digest_term(word ^ uint64_t{1} << bit, digest_key(0)), digest_term(word, digest_key(0))) << bit;
  }
}

TEST(DigestTest, exchanged_words_and_parts_change_it) {
  const uint64_t words[] = {1, 2};
  const uint64_t swapped[] = {2, 1};
  const auto of = [](const uint64_t (&data)[2], uint64_t first) {
    return digest_of(reinterpret_cast<const std::byte*>(data), sizeof data, first);
  };
  EXPECT_NE(of(words, 0), of(swapped, 0));
  EXPECT_NE(of(words, 0) + of(swapped, kWordsOfAPart), of(swapped, 0) + of(words, kWordsOfAPart));
}

}  // namespace
}  // namespace axon::engine
