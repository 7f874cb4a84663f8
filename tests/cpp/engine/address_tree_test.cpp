// Tests the tree over which a large group exchanges addresses, with many engines in this process. Each one has two
// threads that wait, so more of them would take much longer than as many processes.
#include "engine/address_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeout = 120s;

TEST(AddressTreeNeighboursTest, each_rank_has_one_parent_whose_child_it_is) {
  for (const int size : {1, 2, 5, 6, 33, 100, 4096}) {
    std::set<int> children;
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<int> neighbours = AddressTree::neighbours_of(rank, size);
      EXPECT_LE(neighbours.size(), 5U);
      for (const int neighbour : neighbours) {
        EXPECT_LT(neighbour, size);
        const std::vector<int> theirs = AddressTree::neighbours_of(neighbour, size);
        EXPECT_NE(std::ranges::find(theirs, rank), theirs.end()) << rank << " and " << neighbour << " of " << size;
        if (neighbour > rank) {
          EXPECT_TRUE(children.insert(neighbour).second) << neighbour;
        } else {
          EXPECT_EQ(neighbour, neighbours.front()) << rank;
        }
      }
    }
    EXPECT_EQ(children.size(), static_cast<size_t>(size - 1));
  }
}

std::vector<uint8_t> content_of(int rank) {
  return std::vector<uint8_t>(static_cast<size_t>(rank % 3) * 100, static_cast<uint8_t>(rank));
}

class AddressTreeTest : public testing::Test {
 protected:
  void start(size_t num_ranks, std::chrono::milliseconds timeout = kTimeout) {
    engines_ = std::make_unique<Engines>(loopback_transports(fabric_, num_ranks));
    size_ = static_cast<int>(num_ranks);
    for (int rank = 0; rank < size_; ++rank) {
      const AddressTree::Place place{"many", rank, size_, std::chrono::steady_clock::now() + timeout};
      trees_.push_back(std::make_unique<AddressTree>((*engines_)[static_cast<size_t>(rank)], place,
                                                     [this] { return is_over_.load(); }));
    }
  }
  ~AddressTreeTest() override { trees_.clear(); }

  Status connect(int rank) {
    std::vector<PeerAddress> addresses;
    for (const int neighbour : AddressTree::neighbours_of(rank, size_)) {
      addresses.push_back(trees_[static_cast<size_t>(neighbour)]->address());
    }
    return trees_[static_cast<size_t>(rank)]->connect(addresses);
  }

  AddressTree& tree(int rank) { return *trees_[static_cast<size_t>(rank)]; }

  transport::LoopbackFabric fabric_{{.largest_eager_num_bytes = 512}};
  std::unique_ptr<Engines> engines_;
  std::vector<std::unique_ptr<AddressTree>> trees_;
  int size_ = 0;
  std::atomic<bool> is_over_{false};
};

TEST_F(AddressTreeTest, gathers_what_all_ranks_have_and_broadcasts_what_rank_0_has) {
  start(100);
  std::vector<uint8_t> all;
  for (int rank = 0; rank < size_; ++rank) {
    const std::vector<uint8_t> content = content_of(rank);
    all.insert(all.end(), content.begin(), content.end());
  }
  on_all_ranks(trees_.size(), [&](int rank) {
    ASSERT_TRUE(connect(rank).ok());
    Result<std::vector<uint8_t>> gathered = tree(rank).gather(content_of(rank));
    ASSERT_TRUE(gathered.ok()) << gathered.status().message();
    if (rank == 0) {
      std::vector<uint8_t> sorted = gathered.value();
      std::ranges::sort(sorted);
      std::vector<uint8_t> expected = all;
      std::ranges::sort(expected);
      EXPECT_EQ(sorted, expected);
    }
    const Result<std::vector<uint8_t>> sent = tree(rank).broadcast(rank == 0 ? all : std::vector<uint8_t>());
    ASSERT_TRUE(sent.ok()) << sent.status().message();
    EXPECT_EQ(sent.value(), all);
    EXPECT_TRUE(tree(rank).gather({}).ok());
    const Result<std::vector<uint8_t>> empty = tree(rank).broadcast({});
    ASSERT_TRUE(empty.ok()) << empty.status().message();
    EXPECT_TRUE(empty.value().empty());
  });
}

TEST_F(AddressTreeTest, neighbours_name_a_rank_that_is_killed_between_the_steps) {
  start(40);
  constexpr int kCulprit = 5;
  std::atomic<int> num_gathered{0};
  on_all_ranks(trees_.size(), [&](int rank) {
    ASSERT_TRUE(connect(rank).ok());
    ASSERT_TRUE(tree(rank).gather(content_of(rank)).ok());
    if (++num_gathered == size_) fabric_.kill(kCulprit);
    while (num_gathered < size_) std::this_thread::yield();
    if (rank == kCulprit) return;
    const Result<std::vector<uint8_t>> sent = tree(rank).broadcast({1, 2, 3});
    if (rank == 1 || (rank - 1) / 4 == kCulprit) {
      ASSERT_FALSE(sent.ok()) << rank;
      EXPECT_EQ(sent.status().code(), ErrorCode::kPeerLost);
      EXPECT_TRUE(sent.status().message().starts_with("it has lost rank 5: ")) << sent.status().message();
    } else {
      EXPECT_TRUE(sent.ok()) << rank << ": " << sent.status().message();
    }
  });
}

TEST_F(AddressTreeTest, waiting_ends_when_others_have_given_up) {
  start(6);
  std::atomic<int> num_ended{0};
  on_all_ranks(trees_.size(), [&](int rank) {
    if (rank == 5) {  // never takes part
      is_over_ = true;
      return;
    }
    ASSERT_TRUE(connect(rank).ok());
    const Result<std::vector<uint8_t>> gathered = tree(rank).gather(content_of(rank));
    EXPECT_EQ(gathered.ok(), rank > 1) << rank;  // ranks 2 to 4 have no children
    if (!gathered.ok()) {
      EXPECT_EQ(gathered.status().code(), ErrorCode::kCancelled) << gathered.status().message();
    }
    ++num_ended;
  });
  EXPECT_EQ(num_ended, 5);
}

TEST_F(AddressTreeTest, timeout_names_the_rank_waited_for) {
  start(6, 300ms);
  on_all_ranks(trees_.size(), [&](int rank) {
    if (rank == 5 || rank == 0) return;
    ASSERT_TRUE(connect(rank).ok());
    const Result<std::vector<uint8_t>> gathered = tree(rank).gather(content_of(rank));
    if (rank != 1) return;
    ASSERT_FALSE(gathered.ok());
    EXPECT_EQ(gathered.status().code(), ErrorCode::kTimeout);
    EXPECT_EQ(gathered.status().message(), "it waited for rank 5 until its timeout");
  });
}

}  // namespace
}  // namespace axon::engine
