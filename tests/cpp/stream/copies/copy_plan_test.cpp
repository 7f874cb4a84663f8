// Every operation that copies do, played on the host: whatever the order of the queues, each comes to its end, and all
// bytes are where they belong.
#include "stream/copies/copy_plan.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "stream/copies/simulation.hpp"
#include "stream/device_calls.hpp"

namespace axon::testing {
namespace {

using Tensors = std::vector<Words>;  // of each rank

constexpr uint64_t kRegion = 64 << 10;  // of the second round's kind: messages of more take turns
constexpr size_t kLengths[] = {1, 63, 64, 1000, 16'384, 16'385, 70'001};  // of int32
constexpr MessageLimits kLongMessages{.least = 4000, .most = 2 * kRegion};

std::byte* bytes_at(Words& words, size_t begin = 0) {
  return reinterpret_cast<std::byte*>(words.data() + begin);
}

class CopyPlanTest : public ::testing::TestWithParam<std::tuple<int, Queues>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  int root() const { return size() - 1; }

  std::unique_ptr<DeviceCall> collective(OperationKind kind, size_t length = 0) const {
    return DeviceCall::collective(kind, DataType::kInt32, length);
  }

  // Twice, since the second finds the first one's flags and data.
  void run(const std::vector<std::unique_ptr<DeviceCall>>& calls) {
    const auto call_of = [&](int rank) {
      return copy_call_of(*calls[static_cast<size_t>(rank)], rank, size(), kLongMessages);
    };
    ASSERT_TRUE(simulation_.run(call_of, random_)) << "the ranks wait for each other";
  }

  Tensors contributions(size_t length, int round = 0) const {
    Tensors tensors;
    for (int rank = 0; rank < size(); ++rank) tensors.push_back(contribution(rank, length, round));
    return tensors;
  }

  std::mt19937 random_{1};
  Simulation simulation_{size(), 2 * kRegion * static_cast<uint64_t>(size() - 1), std::get<1>(GetParam())};
};

INSTANTIATE_TEST_SUITE_P(Ranks, CopyPlanTest,
                         ::testing::Combine(::testing::Values(2, 3, 4, 7),
                                            ::testing::Values(Queues::kOne, Queues::kOneAStream)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_ranks_" +
                                  (std::get<1>(info.param) == Queues::kOne ? "one_queue" : "a_queue_a_stream");
                         });

TEST_P(CopyPlanTest, all_reduce) {
  for (const size_t length : kLengths) {
    Tensors tensors = contributions(length);
    std::vector<std::unique_ptr<DeviceCall>> calls;
    for (Words& tensor : tensors) {
      calls.push_back(collective(OperationKind::kAllReduce, length));
      calls.back()->reduce_with(Reduction::kSum).write(bytes_at(tensor), 4 * length);
    }
    run(calls);
    for (const Words& tensor : tensors) EXPECT_EQ(tensor, sum_of_contributions(size(), length)) << length;
  }
}

// Rank r's block is r elements longer than the first one's.
TEST_P(CopyPlanTest, uneven_reduce_scatter) {
  for (const size_t length : kLengths) {
    Tensors inputs;
    Tensors outputs;
    std::vector<std::unique_ptr<DeviceCall>> calls;
    const auto length_of = [&](int rank) { return length + static_cast<size_t>(rank); };
    const size_t all = length * static_cast<size_t>(size()) + static_cast<size_t>(size() * (size() - 1) / 2);
    inputs = contributions(all);
    for (int rank = 0; rank < size(); ++rank) outputs.emplace_back(length_of(rank));
    for (int rank = 0; rank < size(); ++rank) {
      calls.push_back(collective(OperationKind::kReduceScatter, all));
      calls.back()->reduce_with(Reduction::kSum);
      size_t begin = 0;
      for (int to = 0; to < size(); begin += length_of(to++)) {
        calls.back()->read(bytes_at(inputs[static_cast<size_t>(rank)], begin), 4 * length_of(to));
      }
      calls.back()->write(bytes_at(outputs[static_cast<size_t>(rank)]), 4 * length_of(rank));
    }
    run(calls);
    const Words sum = sum_of_contributions(size(), all);
    auto begin = sum.begin();
    for (int rank = 0; rank < size(); ++rank) {
      const auto end = begin + static_cast<ptrdiff_t>(length_of(rank));
      EXPECT_EQ(outputs[static_cast<size_t>(rank)], Words(begin, end)) << length;
      begin = end;
    }
  }
}

// Into a tensor that begins with the own block, as it does for FSDP, on the even ranks.
TEST_P(CopyPlanTest, uneven_all_gather_also_in_place) {
  for (const size_t length : kLengths) {
    const auto length_of = [&](int rank) { return length + static_cast<size_t>(3 * rank); };
    std::vector<Tensors> outputs(static_cast<size_t>(size()));
    Tensors inputs;
    std::vector<std::unique_ptr<DeviceCall>> calls;
    for (int rank = 0; rank < size(); ++rank) inputs.push_back(contribution(rank, length_of(rank)));
    for (int rank = 0; rank < size(); ++rank) {
      const auto index = static_cast<size_t>(rank);
      for (int from = 0; from < size(); ++from) outputs[index].emplace_back(length_of(from));
      const bool is_in_place = rank % 2 == 0;
      if (is_in_place) outputs[index][index] = inputs[index];
      calls.push_back(collective(OperationKind::kAllGather));
      calls.back()->read(bytes_at(is_in_place ? outputs[index][index] : inputs[index]), 4 * length_of(rank));
      for (int from = 0; from < size(); ++from) {
        calls.back()->write(bytes_at(outputs[index][static_cast<size_t>(from)]), 4 * length_of(from));
      }
    }
    run(calls);
    for (const Tensors& gathered : outputs) EXPECT_EQ(gathered, inputs) << length;
  }
}

// Messages of very different lengths, some of them too short for copies, some too long for the regions.
TEST_P(CopyPlanTest, uneven_all_to_all) {
  const auto length_of = [](int from, int to) { return static_cast<size_t>((from + 2 * to) % 5) * 9000 + 1; };
  std::vector<Tensors> inputs(static_cast<size_t>(size()));
  std::vector<Tensors> outputs(static_cast<size_t>(size()));
  std::vector<std::unique_ptr<DeviceCall>> calls;
  for (int rank = 0; rank < size(); ++rank) {
    const auto index = static_cast<size_t>(rank);
    calls.push_back(collective(OperationKind::kAllToAll));
    for (int peer = 0; peer < size(); ++peer) {
      inputs[index].push_back(contribution(rank, length_of(rank, peer), peer));
      outputs[index].emplace_back(length_of(peer, rank));
    }
    for (Words& block : inputs[index]) calls.back()->read(bytes_at(block), 4 * block.size());
    for (Words& block : outputs[index]) calls.back()->write(bytes_at(block), 4 * block.size());
  }
  run(calls);
  for (int rank = 0; rank < size(); ++rank) {
    for (int from = 0; from < size(); ++from) {
      EXPECT_EQ(outputs[static_cast<size_t>(rank)][static_cast<size_t>(from)],
                contribution(from, length_of(from, rank), rank));
    }
  }
}

TEST_P(CopyPlanTest, broadcast) {
  for (const size_t length : kLengths) {
    Tensors tensors = contributions(length);
    std::vector<std::unique_ptr<DeviceCall>> calls;
    for (Words& tensor : tensors) {
      calls.push_back(collective(OperationKind::kBroadcast, length));
      calls.back()->rooted_at(root()).write(bytes_at(tensor), 4 * length);
    }
    run(calls);
    for (const Words& tensor : tensors) EXPECT_EQ(tensor, contribution(root(), length)) << length;
  }
}

TEST_P(CopyPlanTest, gather_and_scatter_back) {
  for (const size_t length : kLengths) {
    Tensors blocks = contributions(length);
    Tensors gathered(static_cast<size_t>(size()), Words(length));
    std::vector<std::unique_ptr<DeviceCall>> gathers;
    std::vector<std::unique_ptr<DeviceCall>> scatters;
    for (int rank = 0; rank < size(); ++rank) {
      Words& block = blocks[static_cast<size_t>(rank)];
      gathers.push_back(collective(OperationKind::kGather, length));
      gathers.back()->rooted_at(root()).read(bytes_at(block), 4 * length);
      scatters.push_back(collective(OperationKind::kScatter, length));
      scatters.back()->rooted_at(root()).write(bytes_at(block), 4 * length);
      if (rank != root()) continue;
      for (Words& each : gathered) gathers.back()->write(bytes_at(each), 4 * length);
      for (Words& each : gathered) scatters.back()->read(bytes_at(each), 4 * length);
    }
    run(gathers);
    EXPECT_EQ(gathered, contributions(length)) << length;
    for (Words& each : gathered) std::ranges::reverse(each);
    run(scatters);
    EXPECT_EQ(blocks, gathered) << length;
  }
}

TEST(Cut, pieces_follow_each_other_and_get_shorter_at_the_end) {
  for (const uint64_t shortest : {uint64_t{256}, uint64_t{4} << 20}) {
    for (const uint64_t num_bytes :
         {uint64_t{1}, uint64_t{255}, uint64_t{4097}, uint64_t{999'999}, uint64_t{512} << 20}) {
      const Cut cut = Cut::of(num_bytes, shortest);
      ASSERT_LE(cut.num_pieces(), kMostPieces);
      uint64_t begin = 0;
      for (uint32_t number = 0; number < cut.num_pieces(); ++number) {
        const Piece piece = cut.piece(number);
        EXPECT_EQ(piece.begin, begin);
        EXPECT_EQ(piece.begin % 128, 0u);
        EXPECT_GT(piece.num_bytes, 0u);
        EXPECT_LE(piece.num_bytes, std::max(cut.longest, 2 * shortest));
        begin += piece.num_bytes;
      }
      EXPECT_EQ(begin, num_bytes);
      EXPECT_LE(cut.piece(cut.num_pieces() - 1).num_bytes, 2 * shortest);
      EXPECT_EQ(cut.piece(cut.num_pieces()).num_bytes, 0u);
    }
  }
}

TEST(Regions, of_all_ranks_and_rounds_lie_apart_and_within) {
  for (const int num_ranks : {2, 3, 8, 16}) {
    for (const uint32_t num_rounds : {1u, 2u}) {
      static constexpr uint64_t kMost = 512 << 20;
      const Regions regions = Regions::fit(num_ranks, num_rounds, kMost);
      std::vector<bool> is_taken(num_rounds * static_cast<size_t>(num_ranks - 1));
      for (uint32_t round = 0; round < num_rounds; ++round) {
        for (int sender = 0; sender < num_ranks - 1; ++sender) {
          const uint64_t begin = regions.begin(num_ranks - 1, sender, round);
          EXPECT_EQ(begin % regions.num_bytes, 0u);
          EXPECT_FALSE(is_taken.at(begin / regions.num_bytes));
          is_taken[begin / regions.num_bytes] = true;
        }
      }
      EXPECT_LE(is_taken.size() * regions.num_bytes, kMost);
    }
  }
  EXPECT_EQ(Regions::fit(2, 2, 64 << 10).num_bytes, 0u);
}

}  // namespace
}  // namespace axon::testing
