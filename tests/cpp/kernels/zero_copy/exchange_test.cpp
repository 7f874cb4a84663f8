// Messages written straight into the receivers' tensors.
#include "kernels/zero_copy/zero_copy_test.hpp"

namespace axon::testing {
namespace {

// Bytes that rank `source` sends to rank `target`.
using Sizes = std::vector<std::vector<size_t>>;

Sizes even(int num_ranks, size_t num_bytes) {
  return Sizes(num_ranks, std::vector<size_t>(num_ranks, num_bytes));
}

struct Case {
  Sizes sizes;
  std::vector<int> num_blocks{};  // of rank r, repeated; empty: as the layout has it
  size_t misalignment = 0;        // of the last rank's receive buffers
};

// All messages of one exchange, each in buffers of its own.
class Messages {
 public:
  Messages(DeviceRanks& ranks, const Case& what, std::mt19937& random)
      : ranks_(ranks),
        sizes_(what.sizes),
        contents_(ranks.size()),
        sent_(ranks.size()),
        received_(ranks.size()),
        locations_(ranks.size()) {
    ranks.for_each([&](int rank) {
      locations_[rank].num_blocks = what.num_blocks[rank % what.num_blocks.size()];
      for (int peer = 0; peer < ranks.size(); ++peer) {
        contents_[rank].push_back(random_bytes(sizes_[rank][peer], random));
        sent_[rank].emplace_back(sizes_[rank][peer]);
        sent_[rank][peer].upload(contents_[rank][peer]);
        received_[rank].emplace_back(sizes_[peer][rank], rank == ranks.size() - 1 ? what.misalignment : 0);
        locations_[rank].receives[peer] = ranks.publish(rank, received_[rank][peer].data());
      }
    });
  }

  cuda::IpcLocation location(int rank, int peer) const { return locations_[rank].receives[peer]; }

  void run() const {
    ranks_.for_each([&](int rank) {
      kernels::ExchangeCall call{.operation = cuda::DeviceOperation::kAllToAll};
      for (int peer = 0; peer < ranks_.size(); ++peer) {
        call.sends[peer] = {sent_[rank][peer].data(), sizes_[rank][peer]};
        call.receives[peer] = {received_[rank][peer].data(), sizes_[peer][rank]};
      }
      require(exchange_either_way(ranks_.team(rank), call, locations_[rank], ranks_.stream(rank)));
    });
  }

  void expect_right() const { expect_received(ranks_, received_, contents_); }

 private:
  DeviceRanks& ranks_;
  Sizes sizes_;
  std::vector<std::vector<Bytes>> contents_;
  std::vector<std::vector<DeviceBuffer>> sent_, received_;
  std::vector<kernels::zero_copy::ExchangeLocations> locations_;
};

class ZeroCopyExchanges : public RanksTest {
 protected:
  void check(Case what) {
    if (what.num_blocks.empty()) what.num_blocks = {num_zero_copy_blocks(GetParam())};
    const Messages messages(*ranks_, what, random_);
    messages.run();
    messages.expect_right();
    expect_states(*ranks_, ++num_zero_copy_, 0, "exchange");
  }

  std::mt19937 random_{20261122};
  uint32_t num_zero_copy_ = 0;
};

TEST_P(ZeroCopyExchanges, all_sizes) {
  for (const size_t num_bytes :
       {0, 1, 7, 8, 9, 15, 16, 17, 31, 4095, 4096, 65'535, 65'536, 65'537, 123'457, (1 << 20) + 3}) {
    check({even(ranks_->size(), num_bytes)});
  }
}

TEST_P(ZeroCopyExchanges, large) {
  check({even(ranks_->size(), size_t{40} << 20 >> (ranks_->size() > 4 ? 3 : 0))});
}

TEST_P(ZeroCopyExchanges, any_grid) {
  for (const int num_blocks : {1, 2, 3, 7}) check({even(ranks_->size(), 300'001), {num_blocks}});
}

TEST_P(ZeroCopyExchanges, each_rank_has_a_grid_of_its_own) {
  check({even(ranks_->size(), 300'001), {2, 5, 3}});
  check({even(ranks_->size(), 300'001), {7, 2}});
  if (GetParam().placement == Placement::kGpuEach) check({even(ranks_->size(), 3'000'001), {64, 8}});
}

TEST_P(ZeroCopyExchanges, uneven_messages) {
  for (int round = 0; round < 10; ++round) {
    Sizes sizes = even(ranks_->size(), 0);
    for (auto& row : sizes) {
      for (size_t& size : row) size = random_() % 8 == 0 ? 0 : random_() % (1 + random_() % 300'000);
    }
    check({sizes});
  }
}

TEST_P(ZeroCopyExchanges, one_to_all_and_all_to_one) {
  for (const int root : {0, ranks_->size() - 1}) {
    Sizes scatter = even(ranks_->size(), 0), gather = scatter;
    for (int rank = 0; rank < ranks_->size(); ++rank) scatter[root][rank] = gather[rank][root] = 700'001;
    check({scatter});
    check({gather});
  }
}

// From 48 on, blocks take turns as they become free.
TEST_P(ZeroCopyExchanges, many_blocks_write) {
  if (GetParam().placement != Placement::kGpuEach) GTEST_SKIP() << "the ranks' blocks would not be resident together";
  for (const size_t num_bytes : {size_t{5}, size_t{131'072}, size_t{131'073}, size_t{40'000'001}}) {
    Sizes sizes = even(ranks_->size(), 0);
    for (int rank = 1; rank < ranks_->size(); ++rank) sizes[0][rank] = num_bytes + static_cast<size_t>(rank);
    for (const int num_blocks : {47, 48, 64}) check({sizes, {num_blocks}});
  }
}

TEST_P(ZeroCopyExchanges, a_miss_on_one_rank_makes_all_fall_back) {
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    const int owner = (rank + 1) % ranks_->size();
    const Messages messages(*ranks_, {even(ranks_->size(), 100'001), {num_zero_copy_blocks(GetParam())}}, random_);
    ranks_->withdraw(rank, owner, messages.location(owner, rank));
    messages.run();
    messages.expect_right();
    expect_states(*ranks_, num_zero_copy_, 1, "without a segment");
    check({even(ranks_->size(), 100'001)});
  }
}

TEST_P(ZeroCopyExchanges, a_misaligned_tensor_makes_all_fall_back) {
  const Messages messages(*ranks_, {even(ranks_->size(), 100'001), {num_zero_copy_blocks(GetParam())}, 8}, random_);
  messages.run();
  messages.expect_right();
  expect_states(*ranks_, 0, 1, "misaligned");
}

// Tensors that no peer maps need no location.
TEST_P(ZeroCopyExchanges, empty_messages_need_no_registration) {
  Sizes sizes = even(ranks_->size(), 0);
  sizes[0][1] = 50'000;
  const Messages messages(*ranks_, {sizes, {num_zero_copy_blocks(GetParam())}}, random_);
  for (int rank = 1; rank < ranks_->size(); ++rank) ranks_->withdraw(rank, 0, messages.location(0, rank));
  messages.run();
  messages.expect_right();
  expect_states(*ranks_, 1, 0, "exchange");
}

TEST_P(ZeroCopyExchanges, the_own_message_may_stay_in_place) {
  constexpr size_t kBytes = 100'000;
  std::vector<DeviceBuffer> all;
  std::vector<Bytes> inputs;
  std::vector<cuda::IpcLocation> locations;
  ranks_->for_each([&](int rank) {
    all.emplace_back(kBytes * ranks_->size());
    inputs.push_back(random_bytes(kBytes, random_));
    all[rank].upload(inputs[rank], rank * kBytes);
    locations.push_back(ranks_->publish(rank, all[rank].data()));
  });
  ranks_->for_each([&](int rank) {
    kernels::ExchangeCall call{.operation = cuda::DeviceOperation::kAllGather};
    kernels::zero_copy::ExchangeLocations where{.num_blocks = num_zero_copy_blocks(GetParam())};
    for (int peer = 0; peer < ranks_->size(); ++peer) {
      call.sends[peer] = {all[rank].data() + rank * kBytes, kBytes};
      call.receives[peer] = {all[rank].data() + peer * kBytes, kBytes};
      where.receives[peer] = locations[rank];
      where.receives[peer].offset = locations[rank].offset + peer * kBytes;
    }
    require(exchange_either_way(ranks_->team(rank), call, where, ranks_->stream(rank)));
  });
  ranks_->synchronize();
  ranks_->expect_no_faults();
  expect_states(*ranks_, 1, 0, "all_gather");
  const Bytes expected = concatenated(inputs);
  ranks_->for_each([&](int rank) { all[rank].expect_contents(expected, "rank " + std::to_string(rank)); });
}

INSTANTIATE_TEST_SUITE_P(layouts, ZeroCopyExchanges, kLayouts, name_of);

TEST(ZeroCopyArguments, refused_before_any_launch) {
  const cuda::DeviceTeam team = team_without_memory();
  const cuda::StreamView none(nullptr);
  EXPECT_EQ(kernels::zero_copy::exchange(team, {.traffic = cuda::TrafficClass::kPointToPoint}, {}, none).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(kernels::zero_copy::exchange(team, {}, {.num_blocks = cuda::kMaxBlocks + 1}, none).code(),
            ErrorCode::kInvalidArgument);
  kernels::ExchangeCall call;
  call.sends[0].num_bytes = 1;
  EXPECT_EQ(kernels::zero_copy::exchange(team, call, {}, none).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(kernels::zero_copy::all_reduce(team, {.dtype = DataType::kBool, .reduction = Reduction::kAverage}, {}, none)
                .code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace axon::testing
