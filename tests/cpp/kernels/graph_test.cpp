// Collectives over LL packets and LL128 lines captured in CUDA graphs.
#include <numeric>

#include "kernels/ll/collectives.hpp"
#include "kernels/zero_copy/zero_copy_test.hpp"

namespace axon::testing {
namespace {

constexpr size_t kElements = 1000;
constexpr int kReplays = 1000;

// A thousand inputs and outputs on the device; the captured operation reads and writes `slot`.
struct RankTables {
  cuda::DeviceMemory inputs = require(cuda::DeviceMemory::allocate(kReplays * kElements * 4));
  cuda::DeviceMemory outputs = require(cuda::DeviceMemory::allocate(kReplays * kElements * 4));
  cuda::DeviceMemory slot = require(cuda::DeviceMemory::allocate(kElements * 4));
  cuda::IpcLocation location{};  // of the slot
};

int32_t element(int rank, int replay, size_t index) {
  return (rank + 1) * 100'003 + replay * 977 + static_cast<int32_t>(index);
}

int32_t expected_total(int num_ranks, int replay, size_t index) {
  int32_t total = 0;
  for (int rank = 0; rank < num_ranks; ++rank) total += element(rank, replay, index);
  return total;
}

using AllReduce = Status (*)(const cuda::DeviceTeam&, const RankTables&, cuda::StreamView);

template <Status (*kAlgorithm)(const cuda::DeviceTeam&, const kernels::ll::LlCollective&, cuda::StreamView)>
Status by_ll(const cuda::DeviceTeam& team, const RankTables& tables, cuda::StreamView stream) {
  return kAlgorithm(team,
                    {.input = tables.slot.data(),
                     .output = tables.slot.data(),
                     .num_elements = kElements,
                     .dtype = DataType::kInt32,
                     .reduction = Reduction::kSum},
                    stream);
}

kernels::ReduceCall in_place(const RankTables& tables) {
  return {.input = tables.slot.data(),
          .output = tables.slot.data(),
          .num_elements = kElements,
          .dtype = DataType::kInt32,
          .reduction = Reduction::kSum};
}

Status by_ll128(const cuda::DeviceTeam& team, const RankTables& tables, cuda::StreamView stream) {
  return kernels::ll128::all_reduce(team, in_place(tables), stream);
}

Status by_zero_copy(const cuda::DeviceTeam& team, const RankTables& tables, cuda::StreamView stream) {
  return all_reduce_either_way(team, in_place(tables),
                               {.input = tables.location, .output = tables.location, .num_blocks = 2}, stream);
}

class DeviceGraphs : public RanksTest {
 protected:
  void SetUp() override {
    RanksTest::SetUp();
    if (IsSkipped()) return;
    ranks_->for_each([this](int rank) {
      tables_.push_back(RankTables{});
      tables_[rank].location = ranks_->publish(rank, tables_[rank].slot.data());
      std::vector<int32_t> values(kReplays * kElements);
      for (size_t at = 0; at < values.size(); ++at) {
        values[at] = element(rank, static_cast<int>(at / kElements), at % kElements);
      }
      require(cudaMemcpy(tables_[rank].inputs.data(), values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    });
  }

  // Copies on the device: input of this replay → slot, operation, slot → output of this replay.
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
    ranks_->expect_no_faults();
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

  void enqueue(int rank, AllReduce algorithm) {
    require(algorithm(ranks_->team(rank), tables_[rank], ranks_->stream(rank)));
  }

  std::vector<std::unique_ptr<Graph>> capture(AllReduce algorithm) {
    std::vector<std::unique_ptr<Graph>> graphs;
    ranks_->for_each([&](int rank) {
      graphs.push_back(std::make_unique<Graph>(ranks_->stream(rank), [&] { enqueue(rank, algorithm); }));
    });
    return graphs;
  }

  std::vector<RankTables> tables_;
};

TEST_P(DeviceGraphs, a_thousand_replays_with_changing_inputs) {
  for (const AllReduce algorithm : {by_ll<kernels::ll::all_reduce_one_shot>, by_ll128, by_zero_copy}) {
    const auto graphs = capture(algorithm);
    for (int number = 0; number < kReplays; ++number) {
      replay(number, [&](int rank) { graphs[rank]->launch(ranks_->stream(rank)); });
    }
    expect_all_right();
  }
}

TEST_P(DeviceGraphs, two_graphs_and_eager_calls_take_turns) {
  const auto packets = capture(by_ll<kernels::ll::all_reduce_two_shot>), lines = capture(by_ll128);
  for (int number = 0; number < kReplays; ++number) {
    replay(number, [&](int rank) {
      const cuda::StreamView stream = ranks_->stream(rank);
      if (number % 4 == 0) return packets[rank]->launch(stream);
      if (number % 4 == 1) return lines[rank]->launch(stream);
      enqueue(rank, number % 4 == 2 ? by_ll128 : by_ll<kernels::ll::all_reduce_one_shot>);
    });
  }
  expect_all_right();
}

// Mappings change during the lifetime of a graph.
TEST_P(DeviceGraphs, a_zero_copy_kernel_decides_anew_at_every_replay) {
  const auto graphs = capture(by_zero_copy);
  const RankTables& first = tables_[0];
  for (int number = 0; number < kReplays; ++number) {
    if (number % 100 == 0) {
      ranks_->synchronize();
      const bool is_mapped = number % 200 != 0;
      is_mapped ? ranks_->reveal(1, 0, first.location, first.slot.data()) : ranks_->withdraw(1, 0, first.location);
    }
    replay(number, [&](int rank) { graphs[rank]->launch(ranks_->stream(rank)); });
  }
  expect_all_right();
  expect_states(*ranks_, kReplays / 2, 0, "replays");
}

INSTANTIATE_TEST_SUITE_P(layouts, DeviceGraphs, kLayouts, name_of);

}  // namespace
}  // namespace axon::testing
