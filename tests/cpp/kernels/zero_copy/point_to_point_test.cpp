// Point-to-point messages written straight into the receivers' tensors.
#include "kernels/zero_copy/point_to_point.hpp"

#include "kernels/zero_copy/zero_copy_test.hpp"

namespace axon::testing {
namespace {

constexpr int64_t kNone = -1;

// Bytes that rank `source` sends to rank `target`; kNone: no message.
using Sizes = std::vector<std::vector<int64_t>>;

struct Case {
  Sizes sizes;
  int64_t least_zero_copy = 0;  // messages of this many bytes or more are zero-copy
  size_t misalignment_of_sends = 0;
  size_t misalignment_of_receives = 0;
  kernels::Ll128Shape shape{};
};

// All messages of one batch, each in buffers of its own.
class Messages {
 public:
  Messages(DeviceRanks& ranks, Case what, std::mt19937& random)
      : ranks_(ranks),
        what_(std::move(what)),
        contents_(ranks.size()),
        sent_(ranks.size()),
        received_(ranks.size()),
        locations_(ranks.size()) {
    ranks.for_each([&](int rank) {
      for (int peer = 0; peer < ranks.size(); ++peer) {
        contents_[rank].push_back(random_bytes(bytes(rank, peer), random));
        sent_[rank].emplace_back(bytes(rank, peer), what_.misalignment_of_sends);
        sent_[rank][peer].upload(contents_[rank][peer]);
        received_[rank].emplace_back(bytes(peer, rank), what_.misalignment_of_receives);
        locations_[rank].push_back(ranks.publish(rank, received_[rank][peer].data()));
      }
    });
  }

  // Enqueues the messages to and from the peers in these masks.
  void enqueue(int rank, uint32_t to, uint32_t from, cuda::StreamView stream) const {
    kernels::ExchangeCall call{.traffic = cuda::TrafficClass::kPointToPoint,
                               .operation = cuda::DeviceOperation::kPointToPoint,
                               .shape = what_.shape};
    kernels::zero_copy::MessageLocations zero_copy;
    for (int peer = 0; peer < ranks_.size(); ++peer) {
      if (peer == rank) continue;
      const uint32_t bit = 1u << peer;
      if ((to & bit) != 0 && has(rank, peer)) {
        call.sends_to |= bit;
        call.sends[peer] = {sent_[rank][peer].data(), bytes(rank, peer), tag(rank, peer)};
        if (is_zero_copy(rank, peer)) zero_copy.sends_to |= bit;
      }
      if ((from & bit) != 0 && has(peer, rank)) {
        call.receives_from |= bit;
        call.receives[peer] = {received_[rank][peer].data(), bytes(peer, rank), tag(peer, rank)};
        if (is_zero_copy(peer, rank)) zero_copy.receives_from |= bit;
        zero_copy.receives[peer] = locations_[rank][peer];
      }
    }
    require(kernels::zero_copy::exchange_messages(ranks_.team(rank), call, zero_copy, stream));
  }

  void enqueue(int rank) const { enqueue(rank, ~0u, ~0u, ranks_.stream(rank)); }

  void run() const {
    ranks_.for_each([&](int rank) { enqueue(rank); });
  }

  // Unmaps the receiver's tensor for the sender, or maps it again.
  void withdraw(int source, int target) const { ranks_.withdraw(source, target, locations_[target][source]); }
  void reveal(int source, int target) const {
    ranks_.reveal(source, target, locations_[target][source], received_[target][source].data());
  }

  void expect_right() const {
    ranks_.synchronize();
    ranks_.expect_no_faults();
    ranks_.for_each([&](int rank) {
      for (int peer = 0; peer < ranks_.size(); ++peer) {
        if (peer == rank) continue;
        received_[rank][peer].expect_contents(contents_[peer][rank], "rank " + std::to_string(rank) + " of " +
                                                                         std::to_string(ranks_.size()) + " from rank " +
                                                                         std::to_string(peer));
      }
    });
  }

  // Returns this rank's number of zero-copy messages, to and from all peers.
  uint32_t num_zero_copy(int rank) const {
    uint32_t count = 0;
    for (int peer = 0; peer < ranks_.size(); ++peer) {
      if (peer == rank) continue;
      count += has(rank, peer) && is_zero_copy(rank, peer) ? 1 : 0;
      count += has(peer, rank) && is_zero_copy(peer, rank) ? 1 : 0;
    }
    return count;
  }

 private:
  bool has(int source, int target) const { return what_.sizes[source][target] != kNone; }
  bool is_zero_copy(int source, int target) const { return what_.sizes[source][target] >= what_.least_zero_copy; }
  size_t bytes(int source, int target) const {
    return source == target ? 0 : static_cast<size_t>(std::max<int64_t>(what_.sizes[source][target], 0));
  }
  static uint32_t tag(int source, int target) { return 1000 + 100 * source + target; }

  DeviceRanks& ranks_;
  Case what_;
  std::vector<std::vector<Bytes>> contents_;
  std::vector<std::vector<DeviceBuffer>> sent_, received_;
  std::vector<std::vector<cuda::IpcLocation>> locations_;
};

class ZeroCopyMessages : public RanksTest {
 protected:
  void SetUp() override {
    RanksTest::SetUp();
    if (!IsSkipped()) num_zero_copy_.resize(ranks_->size());
  }

  Sizes all(int64_t num_bytes) const { return Sizes(ranks_->size(), std::vector<int64_t>(ranks_->size(), num_bytes)); }

  // Returns sizes for messages from each rank to the next.
  Sizes ring(int64_t num_bytes) const {
    Sizes sizes = all(kNone);
    for (int rank = 0; rank < ranks_->size(); ++rank) sizes[rank][(rank + 1) % ranks_->size()] = num_bytes;
    return sizes;
  }

  // Draws random sizes; about one message in four is absent.
  Sizes uneven(size_t most_bytes) {
    Sizes sizes = all(0);
    for (auto& row : sizes) {
      for (int64_t& size : row) {
        size = random_() % 4 == 0 ? kNone : static_cast<int64_t>(random_() % (1 + random_() % most_bytes));
      }
    }
    return sizes;
  }

  void check(Case what) {
    const Messages messages(*ranks_, std::move(what), random_);
    messages.run();
    messages.expect_right();
    for (int rank = 0; rank < ranks_->size(); ++rank) num_zero_copy_[rank] += messages.num_zero_copy(rank);
    expect_num_zero_copy();
  }

  void expect_num_zero_copy() const {
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      EXPECT_EQ(ranks_->state(rank).num_zero_copy_messages, num_zero_copy_[rank]) << "rank " << rank;
    }
  }

  std::mt19937 random_{20261123};
  std::vector<uint32_t> num_zero_copy_;  // so far, by rank
};

TEST_P(ZeroCopyMessages, all_sizes) {
  for (const int64_t num_bytes :
       {0, 1, 7, 8, 9, 15, 16, 17, 31, 4095, 4096, 65'535, 65'536, 65'537, 123'457, (1 << 20) + 3}) {
    check({ring(num_bytes)});
    check({all(num_bytes)});
  }
}

// Messages use both directions of every link at once.
TEST_P(ZeroCopyMessages, large) {
  check({all(int64_t{40} << 20 >> (ranks_->size() > 4 ? 3 : 0))});
}

TEST_P(ZeroCopyMessages, any_shape) {
  for (const kernels::Ll128Shape shape : {kernels::Ll128Shape{1, 1}, {2, 4}, {1, 8}, {0, 16}, {2, 16}, {0, 5}}) {
    if (static_cast<uint32_t>(shape.num_channels) >= ranks_->team(0).layout.traffic[1].num_channels) continue;
    check({.sizes = all(50'001), .shape = shape});
  }
}

TEST_P(ZeroCopyMessages, beside_messages_over_ll128) {
  for (int round = 0; round < 20; ++round) check({uneven(300'000), 50'000});
}

TEST_P(ZeroCopyMessages, a_miss_is_made_good_by_ll128) {
  for (int source = 0; source < ranks_->size(); ++source) {
    const int target = (source + 1) % ranks_->size();
    const Messages messages(*ranks_, {all(100'001)}, random_);
    messages.withdraw(source, target);
    messages.run();
    messages.expect_right();
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      num_zero_copy_[rank] += messages.num_zero_copy(rank) - (rank == source || rank == target ? 1 : 0);
    }
    expect_num_zero_copy();
    check({all(100'001)});
  }
}

TEST_P(ZeroCopyMessages, a_misaligned_tensor_is_sent_over_ll128) {
  for (const Case& what : {Case{.sizes = all(100'001), .misalignment_of_sends = 8},
                           Case{.sizes = all(100'001), .misalignment_of_receives = 4},
                           Case{.sizes = ring(100'001), .misalignment_of_sends = 3, .misalignment_of_receives = 3}}) {
    const Messages messages(*ranks_, what, random_);
    messages.run();
    messages.expect_right();
    expect_num_zero_copy();  // no messages
  }
}

// One rank's host runs far ahead: no launch waits for a peer's launch.
TEST_P(ZeroCopyMessages, one_rank_enqueues_far_ahead) {
  constexpr int kOperations = 200;
  const Messages messages(*ranks_, {all(100'000)}, random_);
  ranks_->for_each([&](int rank) {
    for (int operation = 0; operation < kOperations; ++operation) messages.enqueue(rank);
  });
  messages.expect_right();
  for (int rank = 0; rank < ranks_->size(); ++rank) num_zero_copy_[rank] = kOperations * messages.num_zero_copy(rank);
  expect_num_zero_copy();
}

TEST_P(ZeroCopyMessages, each_link_and_direction_on_a_stream_of_its_own) {
  if (ranks_->size() > 4) GTEST_SKIP() << "more kernels than a GPU runs at once";
  constexpr int kRounds = 20;
  std::vector<std::vector<cuda::Stream>> streams(ranks_->size());
  ranks_->for_each([&](int rank) {
    for (int count = 0; count < 2 * ranks_->size(); ++count) streams[rank].push_back(require(cuda::Stream::create()));
  });
  const Messages messages(*ranks_, {.sizes = all(300'001), .least_zero_copy = 0, .shape = {.num_channels = 4}},
                          random_);
  for (int round = 0; round < kRounds; ++round) {
    ranks_->for_each([&](int rank) {
      for (int peer = 0; peer < ranks_->size(); ++peer) {
        if (peer == rank) continue;
        messages.enqueue(rank, 1u << peer, 0, streams[rank][2 * peer]);
        messages.enqueue(rank, 0, 1u << peer, streams[rank][2 * peer + 1]);
      }
    });
  }
  ranks_->for_each([&](int rank) {
    for (const cuda::Stream& stream : streams[rank]) require(stream.view().synchronize());
  });
  messages.expect_right();
  for (int rank = 0; rank < ranks_->size(); ++rank) num_zero_copy_[rank] = kRounds * messages.num_zero_copy(rank);
  expect_num_zero_copy();
}

// Rank 0 sends to two ranks in one batch. The first receives a message from the second before it receives rank 0's, and
// the second's message goes over LL128: neither waits for the other.
TEST_P(ZeroCopyMessages, those_of_a_batch_do_not_wait_for_each_other) {
  if (ranks_->size() < 3) GTEST_SKIP() << "needs three ranks";
  Sizes sizes = all(kNone);
  sizes[0][1] = sizes[0][2] = 3'000'000;
  sizes[2][1] = 10;
  const Messages messages(*ranks_, {sizes}, random_);
  messages.withdraw(0, 2);
  const auto on = [&](int rank, uint32_t to, uint32_t from) {
    cuda::DeviceGuard guard(ranks_->device(rank));
    messages.enqueue(rank, to, from, ranks_->stream(rank));
  };
  on(0, 1u << 1 | 1u << 2, 0);
  on(1, 0, 1u << 2);
  on(1, 0, 1u << 0);
  on(2, 0, 1u << 0);
  on(2, 1u << 1, 0);
  messages.expect_right();
}

// Mappings change during the lifetime of a graph.
TEST_P(ZeroCopyMessages, a_graph_decides_anew_at_every_replay) {
  constexpr int kReplays = 40;
  const Messages messages(*ranks_, {ring(200'003)}, random_);
  std::vector<std::unique_ptr<Graph>> graphs;
  ranks_->for_each([&](int rank) {
    graphs.push_back(std::make_unique<Graph>(ranks_->stream(rank), [&] {
      messages.enqueue(rank);
      messages.enqueue(rank);
    }));
  });
  for (int replay = 0; replay < kReplays; ++replay) {
    if (replay % 10 == 0) {
      ranks_->synchronize();
      replay % 20 == 0 ? messages.withdraw(0, 1) : messages.reveal(0, 1);
    }
    ranks_->for_each([&](int rank) { graphs[rank]->launch(ranks_->stream(rank)); });
  }
  ranks_->for_each([&](int rank) { messages.enqueue(rank); });
  messages.expect_right();
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    num_zero_copy_[rank] = (2 * kReplays + 1) * messages.num_zero_copy(rank) - (rank < 2 ? kReplays : 0);
  }
  expect_num_zero_copy();
}

INSTANTIATE_TEST_SUITE_P(layouts, ZeroCopyMessages, kLayouts, name_of);

TEST(MessageArguments, refused_before_any_launch) {
  const cuda::DeviceTeam team = team_without_memory();
  const cuda::StreamView none(nullptr);
  EXPECT_EQ(kernels::zero_copy::exchange_messages(team, {.traffic = cuda::TrafficClass::kCollective},
                                                  {.sends_to = 1u << 1}, none)
                .code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(kernels::zero_copy::exchange_messages(
                team, {.traffic = cuda::TrafficClass::kPointToPoint, .when = kernels::When::kIfFallback},
                {.receives_from = 1u << 1}, none)
                .code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace axon::testing
