// Tests zero-copy broadcasts, in which ranks pass a tensor on, and the failure of a rank during one.
#include <atomic>

#include "kernels/zero_copy/zero_copy_test.hpp"

namespace axon::testing {
namespace {

struct Case {
  size_t num_bytes;
  int root = 0;
  std::vector<int> num_blocks{};  // of rank r, repeated; empty: as the layout has it
  int num_spans = 0;
};

// One broadcast, of a tensor on each rank.
class Broadcast {
 public:
  Broadcast(DeviceRanks& ranks, const Case& what, std::mt19937& random)
      : ranks_(ranks), what_(what), contents_(random_bytes(what.num_bytes, random)) {
    ranks.for_each([&](int rank) {
      tensors_.emplace_back(what.num_bytes);
      if (rank == what.root) tensors_[rank].upload(contents_);
      locations_.push_back({.data = ranks.publish(rank, tensors_[rank].data()),
                            .num_blocks = what.num_blocks[rank % what.num_blocks.size()],
                            .num_spans = what.num_spans});
    });
  }

  cuda::IpcLocation location(int rank) const { return locations_[rank].data; }

  Status enqueue(int rank) const { return enqueue(rank, tensors_[rank].data()); }
  Status enqueue(int rank, std::byte* data) const {
    return broadcast_either_way(ranks_.team(rank), {.data = data, .num_bytes = what_.num_bytes, .root = what_.root},
                                locations_[rank], ranks_.stream(rank));
  }
  void run() const {
    ranks_.for_each([this](int rank) { require(enqueue(rank)); });
  }

  void expect_right() const {
    ranks_.synchronize();
    ranks_.expect_no_faults();
    ranks_.for_each([this](int rank) {
      tensors_[rank].expect_contents(contents_, "rank " + std::to_string(rank) + " of " +
                                                    std::to_string(ranks_.size()) + ", root " +
                                                    std::to_string(what_.root));
    });
  }

 private:
  DeviceRanks& ranks_;
  Case what_;
  Bytes contents_;
  std::vector<DeviceBuffer> tensors_;
  std::vector<kernels::zero_copy::BroadcastLocations> locations_;
};

class ZeroCopyBroadcasts : public RanksTest {
 protected:
  Case with_blocks(Case what) const {
    if (what.num_blocks.empty()) what.num_blocks = {num_zero_copy_blocks(GetParam())};
    return what;
  }

  void check(const Case& what) {
    const Broadcast broadcast(*ranks_, with_blocks(what), random_);
    broadcast.run();
    broadcast.expect_right();
    expect_states(*ranks_, ++num_zero_copy_, 0, "broadcast");
  }

  // Creates the ranks as SetUp() does, with other options.
  void start(const TeamOptions& options) { ranks_ = std::make_unique<DeviceRanks>(GetParam().devices(), options); }

  std::mt19937 random_{20261126};
  uint32_t num_zero_copy_ = 0;
};

TEST_P(ZeroCopyBroadcasts, all_sizes_from_each_root) {
  int root = 0;
  for (const size_t num_bytes :
       {0, 1, 15, 16, 17, 127, 128, 129, 4096, 65'535, 65'536, 65'537, 262'145, 1'234'567, (4 << 20) + 3}) {
    check({num_bytes, root++ % ranks_->size()});
  }
}

TEST_P(ZeroCopyBroadcasts, large) {
  check({(size_t{200} << 20 >> (ranks_->size() > 4 ? 3 : 0)) + 5, ranks_->size() - 1});
}

TEST_P(ZeroCopyBroadcasts, any_grid) {
  for (const int num_blocks : {1, 2, 3, 7}) {
    for (const int num_spans : {1, 3}) check({1'300'001, 0, {num_blocks}, num_spans});
  }
}

TEST_P(ZeroCopyBroadcasts, each_rank_has_a_grid_of_its_own) {
  check({3'000'001, 0, {2, 5, 3}, 1});
  check({3'000'001, 1, {7, 2}, 1});
  if (GetParam().placement == Placement::kGpuEach) check({30'000'001, 1, {64, 8}});
}

TEST_P(ZeroCopyBroadcasts, a_miss_on_one_rank_makes_all_fall_back) {
  if (ranks_->size() == 2) GTEST_SKIP() << "between two a peer passes nothing on";
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    const int owner = rank == 1 ? 2 : 1;
    const Broadcast broadcast(*ranks_, with_blocks({100'001}), random_);
    ranks_->withdraw(rank, owner, broadcast.location(owner));
    broadcast.run();
    broadcast.expect_right();
    expect_states(*ranks_, num_zero_copy_, 1, "without a segment");
    check({100'001});
  }
}

// No rank writes into the root's tensor.
TEST_P(ZeroCopyBroadcasts, the_root_needs_no_registration) {
  const Broadcast broadcast(*ranks_, with_blocks({1'000'001}), random_);
  for (int rank = 1; rank < ranks_->size(); ++rank) ranks_->withdraw(rank, 0, broadcast.location(0));
  broadcast.run();
  broadcast.expect_right();
  expect_states(*ranks_, 1, 0, "root without a segment");
}

TEST_P(ZeroCopyBroadcasts, a_misaligned_tensor_makes_all_fall_back) {
  const int odd = ranks_->size() - 1;
  const Bytes contents = random_bytes(100'001, random_);
  std::vector<DeviceBuffer> tensors;
  std::vector<cuda::IpcLocation> locations;
  ranks_->for_each([&](int rank) {
    tensors.emplace_back(contents.size(), rank == odd ? 4 : 0);
    if (rank == 0) tensors[0].upload(contents);
    locations.push_back(ranks_->publish(rank, tensors[rank].data()));
  });
  ranks_->for_each([&](int rank) {
    require(broadcast_either_way(ranks_->team(rank), {.data = tensors[rank].data(), .num_bytes = contents.size()},
                                 {.data = locations[rank], .num_blocks = num_zero_copy_blocks(GetParam())},
                                 ranks_->stream(rank)));
  });
  ranks_->synchronize();
  ranks_->expect_no_faults();
  expect_states(*ranks_, 0, 1, "misaligned");
  ranks_->for_each([&](int rank) { tensors[rank].expect_contents(contents, "rank " + std::to_string(rank)); });
}

// Progress reports of one epoch are not taken for those of another, across the wrap after 2³² epochs.
TEST_P(ZeroCopyBroadcasts, epoch_wraps) {
  start({.slice_bytes = GetParam().slice_bytes(), .first_epoch = 0xFFFF'FFF8});
  for (int round = 0; round < 20; ++round) check({size_t{1'000'001} + round, round % ranks_->size(), {}, 1});
}

// Broadcasts follow each other without a pause, from changing roots: a rank may be one operation ahead of another.
TEST_P(ZeroCopyBroadcasts, in_a_row) {
  std::vector<std::unique_ptr<Broadcast>> all;
  for (int number = 0; number < 60; ++number) {
    const size_t num_bytes = 1 + random_() % 1'000'000;
    all.push_back(std::make_unique<Broadcast>(
        *ranks_, with_blocks({num_bytes, static_cast<int>(random_() % ranks_->size()), {}, 1}), random_));
    if (number % 7 == 3 && ranks_->size() > 2) ranks_->withdraw(0, 1, all.back()->location(1));
  }
  for (const auto& broadcast : all) broadcast->run();
  for (const auto& broadcast : all) broadcast->expect_right();
}

TEST_P(ZeroCopyBroadcasts, replayed) {
  const Broadcast broadcast(*ranks_, with_blocks({700'001, 0, {}, 1}), random_);
  std::vector<std::unique_ptr<Graph>> graphs;
  ranks_->for_each([&](int rank) {
    graphs.push_back(std::make_unique<Graph>(ranks_->stream(rank), [&] { require(broadcast.enqueue(rank)); }));
  });
  for (int replay = 0; replay < 100; ++replay) {
    ranks_->for_each([&](int rank) { graphs[rank]->launch(ranks_->stream(rank)); });
  }
  broadcast.expect_right();
  expect_states(*ranks_, 100, 0, "replays");
}

// No kernel waits forever, wherever the abort finds it.
TEST_P(ZeroCopyBroadcasts, abort_ends_all) {
  for (const bool of_all : {true, false}) {
    start({.slice_bytes = GetParam().slice_bytes(), .timeout_ns = of_all ? 60'000'000'000u : 50'000'000u});
    const Broadcast broadcast(*ranks_, with_blocks({10'000'000, 0, {}, 1}), random_);
    for (int number = 0; number < 200; ++number) broadcast.run();
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      if (of_all || rank == 1) std::atomic_ref(ranks_->control(rank).abort).store(1, std::memory_order_release);
    }
    ranks_->synchronize();
  }
}

INSTANTIATE_TEST_SUITE_P(layouts, ZeroCopyBroadcasts, kLayouts, name_of);

}  // namespace
}  // namespace axon::testing
