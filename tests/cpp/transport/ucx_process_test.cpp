// Tests UCX between processes of one host: shared memory and CMA, and cleaning up after a killed process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>

#include "transport/process_group.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::transport {
namespace {

using Clock = std::chrono::steady_clock;

std::unique_ptr<Transport> open_transport() {
  auto transport = open_ucx_transport();
  EXPECT_TRUE(transport.ok()) << transport.status().message();
  return std::move(transport).value();
}

// Counts the segments of UCX's shared memory mapped in this process, its own and other processes'.
size_t num_mapped() {
  std::ifstream maps("/proc/self/maps");
  size_t num_found = 0;
  for (std::string line; std::getline(maps, line);) {
    num_found += line.find("ucx_shm") != std::string::npos || line.find("/SYSV") != std::string::npos ? 1 : 0;
  }
  return num_found;
}

TEST(UcxProcesses, deliver_every_size_both_ways) {
  const std::vector<size_t> sizes{0, 8, 52, 53, 300, 4096, 8059, 8060, 8061, 8200, 65536, size_t{16} << 20};
  ProcessGroup group(2, [&](int rank, ProcessGroup& group) {
    Node node(open_transport());
    const PeerId peer = group.meet(rank, node, true)[1 - rank];
    for (const size_t num_bytes : sizes) node.send(peer, pattern(num_bytes, static_cast<uint64_t>(rank)));
    EXPECT_TRUE(drive({&node}, [&] { return node.all_sends_finished() && node.num_complete() == sizes.size(); }));
    for (const Arrival& arrival : node.arrivals) {
      EXPECT_EQ(arrival.bytes(), pattern(arrival.num_bytes, static_cast<uint64_t>(1 - rank)));
    }
    group.barrier(rank, node);
  });
  EXPECT_TRUE(group.wait());
}

// Rank 2 is killed while messages of every kind to and from it are in transfer.
TEST(UcxProcesses, survivors_of_a_killed_peer_work_on_and_end_at_once) {
  constexpr int kVictim = 2;
  constexpr size_t kLarge = size_t{8} << 20;
  ProcessGroup group(3, [&](int rank, ProcessGroup& group) {
    auto node = std::make_unique<Node>(open_transport());
    node->policy = Node::Policy::kHold;
    const std::vector<PeerId> peers = group.meet(rank, *node, true);
    for (const PeerId peer : peers) node->send(peer, pattern(kLarge, 1));
    drive({node.get()}, [&] { return node->arrivals.size() == 3; });  // each rank holds its messages
    group.barrier(rank, *node);
    if (rank == kVictim) {
      while (true) pause();
    }
    // The victim no longer receives, so these sends fill its queue and stay pending.
    for (int i = 0; i < 2000; ++i) node->send(peers[kVictim], pattern(4000, 2));
    node->send(peers[kVictim], pattern(kLarge, 3));
    if (rank == 0) group.kill(kVictim);
    node->policy = Node::Policy::kFetch;
    group.barrier(rank, *node);
    node->transport().drop_peer(peers[kVictim]);

    const int other = 1 - rank;
    for (const size_t num_bytes : {size_t{8}, size_t{5000}, kLarge}) node->send(peers[other], pattern(num_bytes, 4));
    EXPECT_TRUE(drive({node.get()}, [&] { return node->num_complete() == 3; }));
    for (Arrival& arrival : node->arrivals) {
      if (arrival.rendezvous != nullptr) node->transport().refuse(std::exchange(arrival.rendezvous, nullptr), Status());
    }
    group.barrier(rank, *node);
    const auto start = Clock::now();
    node->transport().flush(500);
    node->close();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
  });
  EXPECT_TRUE(group.wait());
}

TEST(UcxProcesses, fetching_from_a_killed_peer_does_not_block) {
  ProcessGroup group(2, [&](int rank, ProcessGroup& group) {
    Node node(open_transport());
    node.policy = Node::Policy::kHold;
    const std::vector<PeerId> peers = group.meet(rank, node, true);
    if (rank == 1) node.send(peers[0], pattern(size_t{8} << 20, 1));
    if (rank == 0) {
      EXPECT_TRUE(drive({&node}, [&] { return node.arrivals.size() == 1; }));
    }
    group.barrier(rank, node);
    if (rank == 1) {
      while (true) pause();
    }
    group.kill(1);
    const auto start = Clock::now();
    node.fetch(node.arrivals.front());
    const Transfer& fetch = node.arrivals.front().fetch;
    drive({&node}, [&] { return fetch.finished(); }, std::chrono::milliseconds(200));
    EXPECT_TRUE(!fetch.finished() || !fetch.status.ok());
    node.transport().drop_peer(peers[1]);
    node.close();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
  });
  EXPECT_TRUE(group.wait());
}

// After the drop, no memory shared with the dead, no message that waited for them, and no fetch from them may remain.
TEST(UcxProcesses, dead_peers_leak_nothing) {
  constexpr int kSurvivor = 0;
  constexpr int kNumProcesses = 8;
  constexpr size_t kLarge = size_t{8} << 20;
  ProcessGroup group(kNumProcesses, [&](int rank, ProcessGroup& group) {
    Node node(open_transport());
    node.policy = Node::Policy::kHold;
    const size_t num_own = num_mapped();
    const std::vector<PeerId> peers = group.meet(rank, node, true);
    for (int other = 0; other < kNumProcesses; ++other) {
      if (other != rank && (rank == kSurvivor || other == kSurvivor)) node.send(peers[other], pattern(kLarge, 1));
    }
    const size_t num_expected = rank == kSurvivor ? kNumProcesses - 1 : 1;
    EXPECT_TRUE(drive({&node}, [&] { return node.arrivals.size() == num_expected; }));
    group.barrier(rank, node);
    if (rank != kSurvivor) {
      while (true) pause();
    }
    EXPECT_GT(num_mapped(), num_own);
    for (int victim = 1; victim < kNumProcesses; ++victim) {
      group.kill(victim);
      node.transport().drop_peer(peers[victim]);
    }
    EXPECT_TRUE(drive({&node}, [&] { return node.all_sends_finished() && num_mapped() == num_own; }));
    for (const Transfer& send : node.sends) EXPECT_EQ(send.status.code(), ErrorCode::kPeerLost);
    for (Arrival& arrival : node.arrivals) {
      node.fetch(arrival);
      EXPECT_TRUE(drive({&node}, [&] { return arrival.fetch.finished(); }));
      EXPECT_EQ(arrival.fetch.status.code(), ErrorCode::kPeerLost) << arrival.fetch.status.message();
    }
  });
  EXPECT_TRUE(group.wait());
}

}  // namespace
}  // namespace axon::transport
