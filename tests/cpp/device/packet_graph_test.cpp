// Packet collectives captured in CUDA graphs.
#include <numeric>

#include "device/device_ranks.hpp"
#include "device/packet_collectives.hpp"

namespace axon::testing {
namespace {

constexpr size_t kElements = 1000;
constexpr int kReplays = 1000;

// A thousand inputs and outputs on the device; `slot` is where the captured operation reads and writes.
struct RankTables {
  DeviceMemory inputs = require(DeviceMemory::allocate(kReplays * kElements * 4));
  DeviceMemory outputs = require(DeviceMemory::allocate(kReplays * kElements * 4));
  DeviceMemory slot = require(DeviceMemory::allocate(kElements * 4));
};

int32_t element(int rank, int replay, size_t index) {
  return (rank + 1) * 100'003 + replay * 977 + static_cast<int32_t>(index);
}

int32_t expected_total(int num_ranks, int replay, size_t index) {
  int32_t total = 0;
  for (int rank = 0; rank < num_ranks; ++rank) total += element(rank, replay, index);
  return total;
}

PacketCollective in_place(const RankTables& tables) {
  return {.input = tables.slot.data(),
          .output = tables.slot.data(),
          .num_elements = kElements,
          .dtype = DataType::kInt32,
          .reduction = Reduction::kSum};
}

class PacketGraphs : public LayoutTest {
 protected:
  void SetUp() override {
    LayoutTest::SetUp();
    if (IsSkipped()) return;
    ranks_ = std::make_unique<DeviceRanks>(GetParam().devices());
    ranks_->for_each([this](int rank) {
      require(load_packet_kernels(ranks_->size()));
      tables_.push_back(RankTables{});
      std::vector<int32_t> values(kReplays * kElements);
      for (size_t at = 0; at < values.size(); ++at) {
        values[at] = element(rank, static_cast<int>(at / kElements), at % kElements);
      }
      require(cudaMemcpy(tables_[rank].inputs.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    });
  }

  // On the device: input of this replay → slot, operation, slot → output of this replay.
  template <typename Operation>
  void replay(int number, Operation operation) {
    const size_t at = number * kElements * 4;
    ranks_->for_each([&](int rank) {
      const RankTables& tables = tables_[rank];
      const cudaStream_t stream = ranks_->stream(rank).get();
      require(cudaMemcpyAsync(tables.slot.data(), tables.inputs.data() + at, kElements * 4, cudaMemcpyDefault, stream));
      operation(rank);
      require(
          cudaMemcpyAsync(tables.outputs.data() + at, tables.slot.data(), kElements * 4, cudaMemcpyDefault, stream));
    });
  }

  void expect_all_right() {
    ranks_->synchronize();
    ranks_->for_each([&](int rank) {
      std::vector<int32_t> found(kReplays * kElements);
      require(cudaMemcpy(found.data(), tables_[rank].outputs.data(), found.size() * 4, cudaMemcpyDeviceToHost));
      size_t num_wrong = 0;
      for (size_t at = 0; at < found.size(); ++at) {
        num_wrong += found[at] != expected_total(ranks_->size(), static_cast<int>(at / kElements), at % kElements);
      }
      EXPECT_EQ(num_wrong, 0u) << "rank " << rank;
    });
  }

  std::unique_ptr<Graph> capture(int rank,
                                 Status (*algorithm)(const DeviceTeam&, const PacketCollective&, StreamView)) {
    return std::make_unique<Graph>(ranks_->stream(rank), [&] {
      require(algorithm(ranks_->team(rank), in_place(tables_[rank]), ranks_->stream(rank)));
    });
  }

  std::unique_ptr<DeviceRanks> ranks_;
  std::vector<RankTables> tables_;
};

TEST_P(PacketGraphs, a_thousand_replays_with_changing_inputs) {
  std::vector<std::unique_ptr<Graph>> graphs;
  ranks_->for_each([&](int rank) { graphs.push_back(capture(rank, all_reduce_one_shot)); });
  for (int number = 0; number < kReplays; ++number) {
    replay(number, [&](int rank) { graphs[rank]->launch(ranks_->stream(rank)); });
  }
  expect_all_right();
}

TEST_P(PacketGraphs, two_graphs_and_eager_calls_take_turns) {
  std::vector<std::unique_ptr<Graph>> one_shot, two_shot;
  ranks_->for_each([&](int rank) {
    one_shot.push_back(capture(rank, all_reduce_one_shot));
    two_shot.push_back(capture(rank, all_reduce_two_shot));
  });
  for (int number = 0; number < kReplays; ++number) {
    replay(number, [&](int rank) {
      const StreamView stream = ranks_->stream(rank);
      if (number % 3 == 0) return one_shot[rank]->launch(stream);
      if (number % 3 == 1) return two_shot[rank]->launch(stream);
      require(all_reduce_one_shot(ranks_->team(rank), in_place(tables_[rank]), stream));
    });
  }
  expect_all_right();
}

INSTANTIATE_TEST_SUITE_P(layouts, PacketGraphs, kLayouts, name_of);

}  // namespace
}  // namespace axon::testing
