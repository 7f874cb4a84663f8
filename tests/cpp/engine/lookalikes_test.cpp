// Tests hosts that look alike, as machines cloned from one snapshot do. An address that claims this host and cannot
// prove it belongs to another host. Its process id means nothing here.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.hpp"
#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

// Returns the pid of a process that has ended.
int32_t unused_pid() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

class LookalikesTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  // Returns the addresses as this rank reads them: those of the ranks in `elsewhere` look as if they came from a clone
  // of this host.
  std::vector<PeerAddress> addresses_with(std::vector<PeerAddress> addresses,
                                          const std::vector<size_t>& elsewhere) const {
    for (const size_t rank : elsewhere) {
      addresses[rank].process = {random_number(), random_number()};
      addresses[rank].pid = pid_;
    }
    return addresses;
  }

  void expect_that_all_works() {
    on_all_ranks(2, [&](int rank) {
      Communicator& group = *group_[static_cast<size_t>(rank)];
      for (const size_t num_elements : {size_t{1}, size_t{500'000}}) {
        auto sum = TestOperation::all_reduce(std::vector<int32_t>(num_elements, rank + 1), 30s);
        ASSERT_TRUE(run(group, *sum).ok()) << sum->status().message();
        EXPECT_EQ(sum->data, std::vector<int32_t>(num_elements, 3));
      }
    });
  }

  const int32_t pid_ = unused_pid();
  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 2)};
  const std::vector<PeerAddress> addresses_ = engines_.make_addresses();
  std::vector<std::unique_ptr<Communicator>> group_;
};

INSTANTIATE_TEST_SUITE_P(All, LookalikesTest,
                         testing::Values(transport::kLoopback, transport::kRailsTcp, transport::kRings),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(LookalikesTest, a_claim_without_proof_is_another_hosts) {
  group_.push_back(engines_.form("group", 0, addresses_with(addresses_, {1})));
  group_.push_back(engines_.form("group", 1, addresses_with(addresses_, {0})));
  expect_that_all_works();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(group_[static_cast<size_t>(rank)]->shares_host(rank));
    EXPECT_FALSE(group_[static_cast<size_t>(rank)]->shares_host(1 - rank));
    EXPECT_FALSE(group_[static_cast<size_t>(rank)]->path_to(1 - rank).value().same_host);
  }
}

TEST_P(LookalikesTest, one_side_may_prove_what_the_other_cannot) {
  group_.push_back(engines_.form("group", 0, addresses_with(addresses_, {1})));
  group_.push_back(engines_.form("group", 1, addresses_));
  expect_that_all_works();
  EXPECT_FALSE(group_[0]->shares_host(1));
  EXPECT_TRUE(group_[1]->shares_host(0));
}

TEST_P(LookalikesTest, processes_of_one_host_prove_it) {
  group_.push_back(engines_.form("group", 0, addresses_));
  group_.push_back(engines_.form("group", 1, addresses_));
  expect_that_all_works();
  EXPECT_TRUE(group_[0]->shares_host(1));
  EXPECT_TRUE(group_[1]->path_to(0).value().same_host);
}

}  // namespace
}  // namespace axon::engine
