// The ranks' control messages in groups that span hosts, without a GPU: the arenas map nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "cuda/device_types.hpp"
#include "engine/engines.hpp"
#include "gpu_comm/peer_links.hpp"
#include "transport/loopback/loopback.hpp"

namespace axon::gpu_comm {
namespace {

using namespace std::chrono_literals;

constexpr ipc::ArenaSlice kLarge{.offset = ipc::SliceAllocator::kLargeSlice,
                                 .num_bytes = ipc::SliceAllocator::kLargeSlice};
constexpr ipc::ArenaSlice kSmall{.offset = ipc::SliceAllocator::kUnit, .num_bytes = ipc::SliceAllocator::kSmallSlice};
constexpr ipc::ArenaSlice kNoSlice{};

// The arena of one rank. Its "memory" is the rank's place in an array that all ranks have.
class FakeArena final : public ipc::SliceMapper {
 public:
  explicit FakeArena(size_t rank) : rank_(rank) {}

  ipc::DeviceAddress address_of(ipc::ArenaSlice slice) const override {
    return {.incarnation = rank_, .arena_num_bytes = 2 * ipc::SliceAllocator::kLargeSlice, .slice = slice};
  }
  Result<std::shared_ptr<const ipc::ArenaView>> view_of(const ipc::DeviceAddress& address) override {
    auto view = std::make_shared<ipc::ArenaView>();
    view->show(memory_of(address.incarnation), address);
    return std::shared_ptr<const ipc::ArenaView>(std::move(view));
  }

  static std::byte* memory_of(size_t rank) {
    static std::array<std::byte, 64> memory;
    return &memory[rank];
  }

 private:
  const size_t rank_;
};

// Ranks in this process, and the hosts that they claim.
class Ranks {
 public:
  explicit Ranks(std::vector<uint64_t> hosts, std::vector<collectives::AlgorithmOverrides> overrides = {})
      : size_(hosts.size()),
        engines_(engine::loopback_transports(fabric_, size_), std::move(overrides), std::move(hosts)),
        communicators_(engines_.form("hosts")),
        links_(size_) {
    for (size_t rank = 0; rank < size_; ++rank) arenas_.emplace_back(rank);
  }
  ~Ranks() {
    for (const auto& opened : links_) {
      if (opened != nullptr) opened->close();
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  size_t size() const { return size_; }
  PeerLinks& operator[](int rank) { return *links_[static_cast<size_t>(rank)]; }
  uint32_t num_collectives(int rank) const { return communicators_[static_cast<size_t>(rank)]->num_started(); }

  // A rank without a slice has no arena.
  void open(int rank, ipc::ArenaSlice slice = kLarge) {
    const auto index = static_cast<size_t>(rank);
    links_[index] = PeerLinks::open(*communicators_[index], slice.num_bytes == 0 ? nullptr : &arenas_[index], slice);
  }
  void open_all(std::vector<ipc::ArenaSlice> slices = {}) {
    slices.resize(size_, kLarge);
    for (size_t rank = 0; rank < size_; ++rank) open(static_cast<int>(rank), slices[rank]);
  }
  void expect_all_agree_on(PeerAccess expected) {
    engine::on_all_ranks(size_, [&](int rank) {
      const Result<PeerAccess> access = (*this)[rank].agree_all(30s);
      ASSERT_TRUE(access.ok()) << "rank " << rank << ": " << access.status().message();
      EXPECT_EQ(access.value(), expected) << "rank " << rank;
    });
  }

 private:
  const size_t size_;
  transport::LoopbackFabric fabric_;
  std::vector<FakeArena> arenas_;
  engine::Engines engines_;
  std::vector<std::unique_ptr<engine::Communicator>> communicators_;
  std::vector<std::shared_ptr<PeerLinks>> links_;
};

TEST(PeerLinksHosts, neighbours_agree_whatever_other_hosts_do) {
  Ranks ranks({1, 2, 1, 2});
  for (const int rank : {0, 2}) ranks.open(rank);
  engine::on_all_ranks(2, [&](int index) {
    const Result<PeerAccess> access = ranks[2 * index].agree(2 - 2 * index, 30s);
    ASSERT_TRUE(access.ok()) << access.status().message();
    EXPECT_EQ(access.value(), PeerAccess::kLarge);
    EXPECT_TRUE(ranks[2 * index].obstacle_to(2 - 2 * index).ok());
  });
}

TEST(PeerLinksHosts, a_rank_of_another_host_is_not_waited_for) {
  Ranks ranks({1, 2, 1, 2});
  ranks.open(0);
  for (const int elsewhere : {1, 3}) {
    const Result<PeerAccess> access = ranks[0].agree(elsewhere, 0ms);
    ASSERT_TRUE(access.ok()) << access.status().message();
    EXPECT_EQ(access.value(), PeerAccess::kNone);
    EXPECT_EQ(ranks[0].obstacle_to(elsewhere).message(), "its process runs on another host");
  }
  const Result<PeerAccess> neighbour = ranks[0].agree(2, 1ms);
  ASSERT_FALSE(neighbour.ok());
  EXPECT_NE(neighbour.status().message().find("rank 2 has not used a GPU"), std::string::npos)
      << neighbour.status().message();
}

// The second rank of each host has a smaller slice, to tell the slices apart.
TEST(PeerLinksHosts, slices_are_numbered_by_local_index) {
  Ranks ranks({1, 2, 1, 2});
  ranks.open_all({kLarge, kLarge, kSmall, kSmall});
  ranks.expect_all_agree_on(PeerAccess::kSmall);
  for (const int rank : {0, 1, 2, 3}) {
    for (const int index : {0, 1}) {
      const ipc::PeerSlice peer_slice = ranks[rank].peer_slice(index);
      EXPECT_EQ(peer_slice.rank, index);
      ASSERT_NE(peer_slice.arena, nullptr);
      EXPECT_EQ(peer_slice.arena->data(), FakeArena::memory_of(static_cast<size_t>(rank % 2 + 2 * index)));
      EXPECT_EQ(peer_slice.slice.offset, index == 0 ? kLarge.offset : kSmall.offset);
    }
    for (const auto& peers : {ranks[rank].slice_owners(), ranks[rank].slice_users()}) {
      ASSERT_EQ(peers.size(), 2u);
      EXPECT_EQ(peers[0].rank, 0);
      EXPECT_EQ(peers[1].rank, 1);
    }
  }
}

TEST(PeerLinksHosts, all_ranks_vote_once) {
  Ranks ranks({1, 2, 1, 2});
  ranks.open_all();
  for (int again = 0; again < 2; ++again) ranks.expect_all_agree_on(PeerAccess::kLarge);
  for (const int rank : {0, 1, 2, 3}) EXPECT_EQ(ranks.num_collectives(rank), 1u);
}

TEST(PeerLinksHosts, one_host_without_access_decides_for_all) {
  Ranks ranks({1, 2, 1, 2});
  ranks.open_all({kLarge, kLarge, kLarge, kNoSlice});
  ranks.expect_all_agree_on(PeerAccess::kNone);
  const Result<PeerAccess> neighbours = ranks[0].agree(2, 30s);
  ASSERT_TRUE(neighbours.ok()) << neighbours.status().message();
  EXPECT_EQ(neighbours.value(), PeerAccess::kLarge);
}

TEST(PeerLinksHosts, a_rank_alone_on_its_host_needs_no_access) {
  Ranks ranks({1, 2, 1});
  ranks.open_all({kLarge, kNoSlice, kLarge});
  ranks.expect_all_agree_on(PeerAccess::kLarge);
  EXPECT_TRUE(ranks[1].slice_owners().empty());
}

TEST(PeerLinksHosts, hosts_of_one_rank_each_do_not_vote) {
  Ranks ranks({1, 2, 3});
  ranks.open_all({kNoSlice, kNoSlice, kNoSlice});
  ranks.expect_all_agree_on(PeerAccess::kNone);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(ranks.num_collectives(rank), 0u);
}

// No rank waits for another one: the others have not even formed their sides.
TEST(PeerLinksHosts, a_host_of_too_many_ranks_decides_for_all_at_once) {
  constexpr int kMost = cuda::kMaxTeamRanks;
  std::vector<uint64_t> hosts(kMost + 1, 1);
  hosts.insert(hosts.end(), {2, 2});
  Ranks ranks(std::move(hosts));
  for (const int rank : {0, kMost + 1}) {
    ranks.open(rank, rank == 0 ? kNoSlice : kLarge);
    const Result<PeerAccess> access = ranks[rank].agree_all(0ms);
    ASSERT_TRUE(access.ok()) << access.status().message();
    EXPECT_EQ(access.value(), PeerAccess::kNone);
    EXPECT_EQ(ranks.num_collectives(rank), 0u);
  }
  const Result<PeerAccess> among_many = ranks[0].agree(1, 0ms);
  ASSERT_TRUE(among_many.ok()) << among_many.status().message();
  EXPECT_EQ(among_many.value(), PeerAccess::kNone);
  ranks.open(kMost + 2);
  const Result<PeerAccess> in_pair = ranks[kMost + 1].agree(kMost + 2, 30s);
  ASSERT_TRUE(in_pair.ok()) << in_pair.status().message();
  EXPECT_EQ(in_pair.value(), PeerAccess::kLarge);
}

TEST(PeerLinksHosts, the_limit_counts_the_ranks_of_a_host) {
  std::vector<uint64_t> hosts(cuda::kMaxTeamRanks + 4);
  std::iota(hosts.begin(), hosts.end(), 0);
  for (uint64_t& host : hosts) host = host % 4 + 1;
  Ranks ranks(std::move(hosts));
  ranks.open_all();
  ranks.expect_all_agree_on(PeerAccess::kLarge);
}

// Neighbours find out on their own; ranks of other hosts are told by the vote.
TEST(PeerLinksHosts, all_hosts_learn_that_settings_differ_on_one) {
  Ranks ranks({1, 2, 1, 2}, {collectives::AlgorithmOverrides::parse("all_reduce=ll128").value()});
  ranks.open_all();
  engine::on_all_ranks(ranks.size(), [&](int rank) {
    const std::string expected = rank % 2 == 0 ? "other kernels for CUDA tensors here than on rank "
                                               : "different kernels for CUDA tensors on the ranks of one other host";
    for (int again = 0; again < 2; ++again) {
      const Result<PeerAccess> access = ranks[rank].agree_all(30s);
      ASSERT_FALSE(access.ok());
      EXPECT_EQ(access.status().code(), ErrorCode::kMismatch);
      EXPECT_NE(access.status().message().find(expected), std::string::npos) << access.status().message();
    }
  });
}

// Rank 3 never uses its GPU. Its neighbour tells the others of that by the vote, which rank 3 does not enter.
TEST(PeerLinksHosts, a_rank_that_never_comes_is_named_on_all_hosts) {
  Ranks ranks({1, 2, 1, 2});
  for (const int rank : {0, 1, 2}) ranks.open(rank);
  engine::on_all_ranks(3, [&](int rank) {
    const Result<PeerAccess> access = ranks[rank].agree_all(100ms);
    ASSERT_FALSE(access.ok());
    EXPECT_EQ(access.status().code(), ErrorCode::kTimeout) << access.status().message();
    EXPECT_NE(access.status().message().find("rank 3"), std::string::npos) << access.status().message();
  });
}

}  // namespace
}  // namespace axon::gpu_comm
