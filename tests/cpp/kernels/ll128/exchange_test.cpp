// Messages over LL128: collectives without arithmetic, and point to point.
#include "kernels/device_buffer.hpp"
#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/collectives.hpp"

namespace axon::testing {
namespace {

// Bytes that rank `source` sends to rank `target`; -1: no message.
using Sizes = std::vector<std::vector<int64_t>>;

Sizes even(int num_ranks, size_t num_bytes) {
  return Sizes(num_ranks, std::vector<int64_t>(num_ranks, static_cast<int64_t>(num_bytes)));
}

struct Case {
  Sizes sizes;
  size_t misalignment = 0;
  cuda::TrafficClass traffic = cuda::TrafficClass::kCollective;
  kernels::Ll128Shape shape{};
};

// All messages of one exchange, each in buffers of its own.
class Messages {
 public:
  Messages(const DeviceRanks& ranks, Case what, std::mt19937& random)
      : ranks_(ranks), what_(std::move(what)), sent_(ranks.size()), received_(ranks.size()) {
    for (int source = 0; source < ranks.size(); ++source) {
      std::vector<Bytes>& row = contents_.emplace_back();
      for (int target = 0; target < ranks.size(); ++target) row.push_back(random_bytes(bytes(source, target), random));
    }
    ranks.for_each([&](int rank) {
      for (int peer = 0; peer < ranks.size(); ++peer) {
        sent_[rank].emplace_back(bytes(rank, peer), what_.misalignment);
        sent_[rank][peer].upload(contents_[rank][peer]);
        received_[rank].emplace_back(bytes(peer, rank), what_.misalignment * (rank + 1));
      }
    });
  }

  Status enqueue(int rank, cuda::StreamView stream) const {
    kernels::ExchangeCall call{
        .traffic = what_.traffic, .operation = cuda::DeviceOperation::kAllToAll, .shape = what_.shape};
    for (int peer = 0; peer < ranks_.size(); ++peer) {
      call.sends[peer] = {sent_[rank][peer].data(), bytes(rank, peer), tag(rank, peer)};
      call.receives[peer] = {received_[rank][peer].data(), bytes(peer, rank), tag(peer, rank)};
      if (peer != rank && what_.sizes[rank][peer] >= 0) call.sends_to |= 1u << peer;
      if (peer != rank && what_.sizes[peer][rank] >= 0) call.receives_from |= 1u << peer;
    }
    return kernels::ll128::exchange(ranks_.team(rank), call, stream);
  }

  void run() const {
    ranks_.for_each([&](int rank) { require(enqueue(rank, ranks_.stream(rank))); });
  }

  void expect_right() const { expect_received(ranks_, received_, contents_); }

 private:
  size_t bytes(int source, int target) const {
    return static_cast<size_t>(std::max<int64_t>(what_.sizes[source][target], 0));
  }
  static uint32_t tag(int source, int target) { return 1000 + 100 * source + target; }

  const DeviceRanks& ranks_;
  Case what_;
  std::vector<std::vector<Bytes>> contents_;
  std::vector<std::vector<DeviceBuffer>> sent_, received_;
};

class Ll128Exchanges : public RanksTest {
 protected:
  void check(Case what) {
    Messages messages(*ranks_, std::move(what), random_);
    messages.run();
    messages.expect_right();
  }

  // Draws random sizes; about one message in eight is `none`.
  Sizes uneven(size_t most_bytes, int64_t none) {
    Sizes sizes = even(ranks_->size(), 0);
    for (auto& row : sizes) {
      for (int64_t& size : row) {
        size = random_() % 8 == 0 ? none : static_cast<int64_t>(random_() % (1 + random_() % most_bytes));
      }
    }
    for (int rank = 0; rank < ranks_->size(); ++rank) sizes[rank][rank] = std::max<int64_t>(sizes[rank][rank], 0);
    return sizes;
  }

  std::mt19937 random_{20261121};
};

TEST_P(Ll128Exchanges, all_sizes) {
  for (const size_t num_bytes : {0,   1,   7,   8,   15,  16,   120,  121,  479,     480,          481,
                                 511, 512, 959, 960, 961, 4095, 4096, 4097, 123'457, (1 << 20) + 3}) {
    check({even(ranks_->size(), num_bytes)});
  }
}

TEST_P(Ll128Exchanges, large) {
  check({even(ranks_->size(), size_t{40} << 20 >> (ranks_->size() > 4 ? 3 : 0))});
}

TEST_P(Ll128Exchanges, any_alignment) {
  for (const size_t misalignment : {1, 2, 3, 4, 8, 12, 15}) {
    for (const size_t num_bytes : {1, 31, 960, 5000, 100'001}) check({even(ranks_->size(), num_bytes), misalignment});
  }
}

TEST_P(Ll128Exchanges, uneven_messages) {
  for (int round = 0; round < 10; ++round) check({uneven(300'000, 0), random_() % 3 * 8});
}

TEST_P(Ll128Exchanges, one_to_all_and_all_to_one) {
  for (const int root : {0, ranks_->size() - 1}) {
    Sizes scatter = even(ranks_->size(), 0), gather = scatter;
    for (int rank = 0; rank < ranks_->size(); ++rank) scatter[root][rank] = gather[rank][root] = 70'001;
    check({scatter});
    check({gather});
  }
}

TEST_P(Ll128Exchanges, the_own_message_may_stay_in_place) {
  constexpr size_t kBytes = 10'000;
  std::vector<DeviceBuffer> all;
  std::vector<Bytes> inputs;
  ranks_->for_each([&](int rank) {
    all.emplace_back(kBytes * ranks_->size());
    inputs.push_back(random_bytes(kBytes, random_));
    all[rank].upload(inputs[rank], rank * kBytes);
  });
  ranks_->for_each([&](int rank) {
    kernels::ExchangeCall call{.operation = cuda::DeviceOperation::kAllGather};
    for (int peer = 0; peer < ranks_->size(); ++peer) {
      call.sends[peer] = {all[rank].data() + rank * kBytes, kBytes};
      call.receives[peer] = {all[rank].data() + peer * kBytes, kBytes};
    }
    require(kernels::ll128::exchange(ranks_->team(rank), call, ranks_->stream(rank)));
  });
  ranks_->synchronize();
  ranks_->expect_no_faults();
  Bytes expected;
  for (const Bytes& input : inputs) expected.insert(expected.end(), input.begin(), input.end());
  ranks_->for_each([&](int rank) { all[rank].expect_contents(expected, "rank " + std::to_string(rank)); });
}

// The number of channels and the grid change from launch to launch; a channel resumes at its last position.
TEST_P(Ll128Exchanges, any_shape) {
  for (const kernels::Ll128Shape shape :
       {kernels::Ll128Shape{1, 1}, {2, 4}, {1, 8}, {3, 2}, {0, 16}, {2, 16}, {0, 5}}) {
    check({even(ranks_->size(), 50'000), 0, cuda::TrafficClass::kCollective, shape});
    if (static_cast<uint32_t>(shape.num_channels) <
        ranks_->team(0).layout.traffic[1].num_channels) {  // one is for headers
      check({even(ranks_->size(), 50'001), 0, cuda::TrafficClass::kPointToPoint, shape});
    }
  }
}

TEST_P(Ll128Exchanges, point_to_point_meets_only_the_ranks_named) {
  Sizes sizes = even(ranks_->size(), -1);
  for (int rank = 0; rank < ranks_->size(); ++rank) sizes[rank][rank] = 0;
  for (const int64_t num_bytes : {0, 1, 960, 961, 1'000'000}) {
    sizes[0][1] = num_bytes;
    const Messages messages(*ranks_, {sizes, 8, cuda::TrafficClass::kPointToPoint}, random_);
    ranks_->for_each([&](int rank) {
      if (rank < 2) require(messages.enqueue(rank, ranks_->stream(rank)));
    });
    messages.expect_right();
  }
}

TEST_P(Ll128Exchanges, point_to_point_batches) {
  for (int round = 0; round < 20; ++round) check({uneven(100'000, -1), 0, cuda::TrafficClass::kPointToPoint});
}

// In both directions of a link, each rank sends before it receives.
TEST_P(Ll128Exchanges, large_point_to_point_both_ways) {
  check({even(ranks_->size(), size_t{5} << 20), 0, cuda::TrafficClass::kPointToPoint});
}

TEST_P(Ll128Exchanges, point_to_point_beside_collectives) {
  constexpr int kRounds = 20;
  std::vector<cuda::Stream> streams;
  ranks_->for_each([&](int) { streams.push_back(require(cuda::Stream::create())); });
  std::vector<std::unique_ptr<Messages>> collectives, point_to_points;
  for (int round = 0; round < kRounds; ++round) {
    collectives.push_back(std::make_unique<Messages>(*ranks_, Case{uneven(60'000, 0)}, random_));
    point_to_points.push_back(
        std::make_unique<Messages>(*ranks_, Case{uneven(60'000, -1), 0, cuda::TrafficClass::kPointToPoint}, random_));
  }
  for (int round = 0; round < kRounds; ++round) {
    collectives[round]->run();
    ranks_->for_each([&](int rank) { require(point_to_points[round]->enqueue(rank, streams[rank])); });
  }
  ranks_->for_each([&](int rank) { require(streams[rank].view().synchronize()); });
  for (int round = 0; round < kRounds; ++round) {
    collectives[round]->expect_right();
    point_to_points[round]->expect_right();
  }
}

// One rank's host runs far ahead: no launch waits for a peer's launch.
TEST_P(Ll128Exchanges, one_rank_enqueues_far_ahead) {
  const Messages messages(*ranks_, {even(ranks_->size(), 100'000)}, random_);
  ranks_->for_each([&](int rank) {
    for (int operation = 0; operation < 200; ++operation) require(messages.enqueue(rank, ranks_->stream(rank)));
  });
  messages.expect_right();
}

INSTANTIATE_TEST_SUITE_P(layouts, Ll128Exchanges, kLayouts, name_of);

TEST(Ll128Arguments, refused_before_any_launch) {
  const cuda::DeviceTeam team = team_without_memory();
  const cuda::StreamView none(nullptr);
  kernels::ExchangeCall call{.shape = {.num_channels = 1000}};
  EXPECT_EQ(kernels::ll128::exchange(team, call, none).code(), ErrorCode::kInvalidArgument);
  call = {.shape = {.num_channels = 1, .warps_per_block = 17}};
  EXPECT_EQ(kernels::ll128::exchange(team, call, none).code(), ErrorCode::kInvalidArgument);
  call = {};
  call.sends[0].num_bytes = 1;
  EXPECT_EQ(kernels::ll128::exchange(team, call, none).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(kernels::ll128::all_reduce(team, {.dtype = DataType::kBool, .reduction = Reduction::kAverage}, none).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace axon::testing
