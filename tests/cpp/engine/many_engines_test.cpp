// Tests a group of 512 ranks on 64 hosts, each rank with an engine of its own in this process. Collectives are right,
// and small ones take a number of steps that grows with the logarithm of the ranks. Faults are named on all ranks.
//
// AXON_TEST_RANKS sets another number (docs/large.md has the times and the memory). Each rank takes four descriptors,
// so 4,096 ranks need `ulimit -n` of 16,500.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comes_true.hpp"
#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr size_t kRanksOnAHost = 8;
constexpr auto kTimeout = 200s;

// A collective of int32 elements. Element i of its result is i + 1.
class ManyOperation final : public Operation {
 public:
  ManyOperation(transport::OperationKind kind, size_t num_results, size_t rank, size_t num_ranks) {
    arguments.kind = kind;
    arguments.dtype = DataType::kInt32;
    timeout = kTimeout;
    num_elements = num_results;
    shape.num_dimensions = 1;
    shape.sizes[0] = static_cast<int64_t>(num_results);
    results_.resize(num_results);
    if (kind == transport::OperationKind::kAllReduce) {
      arguments.reduction = Reduction::kSum;
      for (size_t i = 0; i < num_results; ++i) results_[i] = i % num_ranks == rank ? static_cast<int>(i + 1) : 0;
      outputs_.push_back(buffer_of(0, num_results));
    } else if (kind == transport::OperationKind::kAllGather) {
      own_ = static_cast<int>(rank + 1);
      input_ = {reinterpret_cast<const std::byte*>(&own_), sizeof own_};
      arguments.inputs = {&input_, 1};
      for (size_t i = 0; i < num_results; ++i) outputs_.push_back(buffer_of(i, 1));
    }
    arguments.outputs = outputs_;
  }

  bool is_right() const {
    for (size_t i = 0; i < results_.size(); ++i) {
      if (results_[i] != static_cast<int>(i + 1)) return false;
    }
    return true;
  }
  bool is_released() const { return released_.load(); }

 private:
  void on_released() noexcept override { released_.store(true); }
  Buffer buffer_of(size_t first, size_t count) {
    return {reinterpret_cast<std::byte*>(results_.data() + first), count * sizeof(int)};
  }

  std::vector<int> results_;
  int own_ = 0;
  ConstBuffer input_;
  std::vector<Buffer> outputs_;
  std::atomic<bool> released_{false};
};

class World {
 public:
  World() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    const char* const wanted = std::getenv("AXON_TEST_RANKS");
    num_ranks = wanted == nullptr ? 512 : std::stoul(wanted);
    std::vector<uint64_t> hosts;
    for (size_t rank = 0; rank < num_ranks; ++rank) hosts.push_back(rank / kRanksOnAHost);
    engines.emplace(loopback_transports(fabric, num_ranks), std::vector<collectives::AlgorithmOverrides>(),
                    std::move(hosts), Engines::StatusPages::kNone);
  }

  size_t most_connections() const {
    size_t most = 0;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) most = std::max(most, fabric.num_connections(rank));
    return most;
  }

  transport::LoopbackFabric fabric{{.largest_eager_num_bytes = size_t{16} << 10}};
  size_t num_ranks = 0;
  std::optional<Engines> engines;
};

class ManyEnginesTest : public testing::Test {
 protected:
  using Operations = std::vector<std::unique_ptr<ManyOperation>>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  void SetUp() override { GTEST_SKIP() << "takes too long with a sanitizer"; }
#endif
  static void SetUpTestSuite() { world_ = std::make_unique<World>(); }
  static void TearDownTestSuite() { world_.reset(); }

  size_t num_ranks() const { return world_->num_ranks; }

  Operations start(transport::OperationKind kind, size_t num_results, const std::vector<size_t>& without = {}) {
    Operations operations;
    for (size_t rank = 0; rank < num_ranks(); ++rank) {
      operations.push_back(std::make_unique<ManyOperation>(kind, num_results, rank, num_ranks()));
      if (std::ranges::find(without, rank) == without.end()) group_[rank]->start(*operations.back());
    }
    return operations;
  }

  // Returns the most messages that a rank has sent and received.
  uint64_t run(transport::OperationKind kind, size_t num_results) {
    std::vector<uint64_t> before;
    for (uint32_t rank = 0; rank < num_ranks(); ++rank) before.push_back(world_->fabric.num_steps(rank));
    const Operations operations = start(kind, num_results);
    uint64_t most = 0;
    for (uint32_t rank = 0; rank < num_ranks(); ++rank) {
      EXPECT_TRUE(group_[rank]->wait(*operations[rank], sync::Clock::now() + kTimeout));
      EXPECT_TRUE(operations[rank]->status().ok()) << operations[rank]->status().message();
      EXPECT_TRUE(operations[rank]->is_right()) << rank;
      EXPECT_TRUE(comes_true([&] { return operations[rank]->is_released(); }));
      most = std::max(most, world_->fabric.num_steps(rank) - before[rank]);
    }
    return most;
  }

  void expect_told(const Operations& operations, const std::string& text, const std::vector<size_t>& without) {
    for (size_t rank = 0; rank < num_ranks(); ++rank) {
      if (std::ranges::find(without, rank) != without.end()) continue;
      ASSERT_TRUE(group_[rank]->wait(*operations[rank], sync::Clock::now() + kTimeout)) << rank;
      EXPECT_NE(operations[rank]->status().message().find(text), std::string::npos)
          << rank << ": " << operations[rank]->status().message();
      EXPECT_TRUE(comes_true([&] { return operations[rank]->is_released(); }));
    }
  }

  uint64_t num_doublings() const { return static_cast<uint64_t>(std::bit_width(num_ranks() - 1)); }
  // Ranks that wait for longer than 200 ms also send contacts, every two seconds. A rank that is late is awaited by up
  // to as many others as it has partners.
  uint64_t most_contacts(sync::Clock::duration waited) const {
    return waited < 200ms ? 0 : num_doublings() * (1 + static_cast<uint64_t>(waited / 2s));
  }
  uint64_t most_steps() const { return 2 * num_doublings() + 4; }

  static std::unique_ptr<World> world_;
  static size_t connections_at_start_;
  std::vector<std::unique_ptr<Communicator>> group_ = world_->engines->form("many");
};

std::unique_ptr<World> ManyEnginesTest::world_;
size_t ManyEnginesTest::connections_at_start_ = 0;

TEST_F(ManyEnginesTest, small_collectives_take_a_logarithm_of_steps) {
  using enum transport::OperationKind;
  const std::pair<transport::OperationKind, size_t> collectives[] = {
      {kBarrier, 0}, {kAllReduce, 2}, {kAllGather, num_ranks()}};
  for (const auto& [kind, num_results] : collectives) {
    run(kind, num_results);
    const sync::Clock::time_point began = sync::Clock::now();
    const uint64_t num_steps = run(kind, num_results);
    EXPECT_LE(num_steps, most_steps() + most_contacts(sync::Clock::now() - began));
  }
}

TEST_F(ManyEnginesTest, ranks_connect_to_few_others) {
  EXPECT_LE(connections_at_start_, kRanksOnAHost - 1 + 2);
  run(transport::OperationKind::kBarrier, 0);
  run(transport::OperationKind::kAllReduce, 2);
  EXPECT_LE(world_->most_connections(), 64u);
}

TEST_F(ManyEnginesTest, large_all_reduce_is_right) {
  run(transport::OperationKind::kAllReduce, (size_t{1} << 20) / sizeof(int));
}

TEST_F(ManyEnginesTest, rank_that_aborts_is_named_on_all_ranks) {
  const size_t culprit = num_ranks() / 2 + 3;
  const Operations operations = start(transport::OperationKind::kAllReduce, 2, {culprit});
  group_[culprit]->abort("it had enough");
  expect_told(operations, "rank " + std::to_string(culprit) + " reports: it had enough", {culprit});
}

TEST_F(ManyEnginesTest, rank_that_calls_something_else_is_named_on_all_ranks) {
  const size_t culprit = num_ranks() - 2;
  Operations operations = start(transport::OperationKind::kAllReduce, 2, {culprit});
  operations[culprit] = std::make_unique<ManyOperation>(transport::OperationKind::kAllReduce, 3, culprit, num_ranks());
  group_[culprit]->start(*operations[culprit]);
  expect_told(operations, "mismatched collectives at #1: rank ", {});
  expect_told(operations, "rank " + std::to_string(culprit) + " called all_reduce", {});
}

// Ranks that have exchanged no message with it hear of it from those that have.
TEST_F(ManyEnginesTest, rank_that_has_left_is_named_on_all_ranks) {
  const size_t culprit = num_ranks() / 3;
  run(transport::OperationKind::kAllReduce, 2);
  group_[culprit]->leave("it is done");
  const Operations operations = start(transport::OperationKind::kAllReduce, 2, {culprit});
  expect_told(operations, "rank " + std::to_string(culprit) + " reports: it is done", {culprit});
}

TEST_F(ManyEnginesTest, rank_that_does_not_enter_is_named_on_all_ranks) {
  const size_t culprit = num_ranks() / 2;
  Operations operations = start(transport::OperationKind::kBarrier, 0, {culprit, culprit + 1});
  operations[culprit + 1]->timeout = 1s;
  group_[culprit + 1]->start(*operations[culprit + 1]);
  const std::string name = std::to_string(culprit);
  expect_told(operations, "Not entered by: rank " + name + " (has called no collective yet)", {culprit});
}

TEST_F(ManyEnginesTest, receives_from_a_rank_that_has_left_fail) {
  const size_t receiver = num_ranks() / 5;
  const size_t source = receiver + num_ranks() / 2 + 3;
  const auto receive = [&] {
    const auto operation = TestOperation::receive(1, static_cast<int>(source), 7, kTimeout);
    return axon::engine::run(*group_[receiver], *operation).message();
  };
  group_[source]->leave("it is done");
  const std::string has_left = "rank " + std::to_string(source) + " has left the group";
  EXPECT_NE(receive().find(has_left), std::string::npos) << receive();
}

// The send makes the two known to each other, but the rank that has left cannot have told this one.
TEST_F(ManyEnginesTest, receives_after_a_send_to_a_rank_that_has_left_fail) {
  const size_t receiver = 7;
  const size_t source = num_ranks() / 2 + 30;
  group_[source]->leave("it is done");
  const auto send = TestOperation::send({1}, static_cast<int>(source), 7);
  axon::engine::run(*group_[receiver], *send);
  const auto receive = TestOperation::receive(1, static_cast<int>(source), 7, kTimeout);
  const std::string message = axon::engine::run(*group_[receiver], *receive).message();
  EXPECT_NE(message.find("rank " + std::to_string(source)), std::string::npos) << message;
  group_[source].reset();  // its memory of the group is gone
  const auto another = TestOperation::receive(1, static_cast<int>(source), 7, kTimeout);
  const std::string again = axon::engine::run(*group_[receiver], *another).message();
  EXPECT_NE(again.find("rank " + std::to_string(source)), std::string::npos) << again;
}

TEST_F(ManyEnginesTest, killed_rank_is_named_on_all_ranks) {
  const size_t culprit = num_ranks() / 2;
  const Operations operations = start(transport::OperationKind::kAllReduce, 2, {culprit});
  const auto receive = TestOperation::receive(1, static_cast<int>(culprit), 7, kTimeout);
  group_[3]->start(*receive);
  world_->fabric.kill(static_cast<uint32_t>(culprit));
  const std::string is_gone = "rank " + std::to_string(culprit) + " is gone";
  expect_told(operations, is_gone, {culprit});
  ASSERT_TRUE(group_[3]->wait(*receive, sync::Clock::now() + kTimeout));
  EXPECT_NE(receive->status().message().find(is_gone), std::string::npos) << receive->status().message();
}

}  // namespace
}  // namespace axon::engine
