// all_reduce, reduce and reduce_scatter by zero-copy kernels, and what happens where these fall back.
#include <numeric>

#include "kernels/ll/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/zero_copy/zero_copy_test.hpp"

namespace axon::testing {
namespace {

struct Case {
  size_t num_elements;
  DataType dtype = DataType::kFloat32;
  Reduction reduction = Reduction::kSum;
  int root = cuda::kNoRoot;
  int num_blocks = 0;
  int num_more_blocks = 0;  // of each rank over the rank before it

  size_t num_bytes() const { return num_elements * size_of(dtype); }
  std::string name() const { return std::to_string(num_elements) + " x " + name_of(dtype) + " " + name_of(reduction); }
};

// One all_reduce or reduce: an input and an output tensor on every rank, which are the same if it is in place.
class Reduced {
 public:
  Reduced(DeviceRanks& ranks, const Case& what, std::mt19937& random) : ranks_(ranks), what_(what) {
    ranks.for_each([&](int rank) {
      contents_.push_back(draw(what.dtype, what.num_elements, random));
      inputs_.emplace_back(what.num_bytes());
      inputs_[rank].upload(contents_[rank]);
      outputs_.emplace_back(what.num_bytes());
      locations_.push_back({.input = ranks.publish(rank, inputs_[rank].data()),
                            .output = ranks.publish(rank, outputs_[rank].data()),
                            .num_blocks = what.num_blocks + rank * what.num_more_blocks});
    });
  }

  const kernels::zero_copy::ReduceLocations& locations(int rank) const { return locations_[rank]; }

  Status enqueue(int rank) const { return enqueue(rank, outputs_[rank].data(), locations_[rank]); }
  Status enqueue_in_place(int rank) const {
    kernels::zero_copy::ReduceLocations locations = locations_[rank];
    locations.output = locations.input;
    return enqueue(rank, inputs_[rank].data(), locations);
  }

  void expect_right() const { expect(outputs_); }
  void expect_right_in_place() const { expect(inputs_); }

 private:
  Status enqueue(int rank, void* output, const kernels::zero_copy::ReduceLocations& locations) const {
    return all_reduce_either_way(ranks_.team(rank),
                                 {.input = inputs_[rank].data(),
                                  .output = output,
                                  .num_elements = what_.num_elements,
                                  .dtype = what_.dtype,
                                  .reduction = what_.reduction,
                                  .premul_factor = kPremulFactor,
                                  .root = what_.root},
                                 locations, ranks_.stream(rank));
  }

  void expect(const std::vector<DeviceBuffer>& outputs) const {
    ranks_.synchronize();
    ranks_.expect_no_faults();
    const Bytes expected = reduced(what_.dtype, what_.reduction, contents_);
    ranks_.for_each([&](int rank) {
      if (what_.root != cuda::kNoRoot && what_.root != rank) return;
      outputs[rank].expect_contents(
          expected, what_.name() + ", rank " + std::to_string(rank) + " of " + std::to_string(ranks_.size()));
    });
  }

  DeviceRanks& ranks_;
  Case what_;
  std::vector<Bytes> contents_;
  std::vector<DeviceBuffer> inputs_, outputs_;
  std::vector<kernels::zero_copy::ReduceLocations> locations_;
};

class ZeroCopyReductions : public RanksTest {
 protected:
  Case with_blocks(Case what) const {
    if (what.num_blocks == 0) what.num_blocks = num_zero_copy_blocks(GetParam());
    return what;
  }

  void check(Case what) {
    const Reduced reduced(*ranks_, with_blocks(what), random_);
    ranks_->for_each([&](int rank) { require(reduced.enqueue(rank)); });
    reduced.expect_right();
    expect_states(*ranks_, ++num_zero_copy_, 0, what.name());
  }

  enum class Way { kZeroCopy, kFallBack };

  // Every shard is a tensor of its own. To fall back, rank 1's tensor is unmapped for rank 0.
  void check_reduce_scatter(Case what, const std::vector<size_t>& shards, Way way = Way::kZeroCopy) {
    what = with_blocks(what);
    const size_t width = size_of(what.dtype);
    std::vector<Bytes> contents;
    std::vector<std::vector<DeviceBuffer>> inputs(ranks_->size());
    std::vector<DeviceBuffer> outputs;
    std::vector<kernels::zero_copy::ReduceScatterLocations> locations(ranks_->size());
    ranks_->for_each([&](int rank) {
      contents.push_back(draw(what.dtype, what.num_elements, random_));
      auto begin = contents[rank].begin();
      for (int owner = 0; owner < ranks_->size(); ++owner) {
        const auto end = begin + static_cast<ptrdiff_t>(shards[owner] * width);
        inputs[rank].emplace_back(shards[owner] * width);
        inputs[rank][owner].upload(Bytes(begin, end));
        locations[rank].inputs[owner] = ranks_->publish(rank, inputs[rank][owner].data());
        begin = end;
      }
      locations[rank].num_blocks = what.num_blocks;
      outputs.emplace_back(shards[rank] * width);
    });
    if (way == Way::kFallBack) ranks_->withdraw(0, 1, locations[1].inputs[0]);
    if (way == Way::kZeroCopy) ++num_zero_copy_;
    ranks_->for_each([&](int rank) {
      kernels::ReduceScatterCall call{.output = outputs[rank].data(),
                                      .dtype = what.dtype,
                                      .reduction = what.reduction,
                                      .premul_factor = kPremulFactor};
      for (int owner = 0; owner < ranks_->size(); ++owner) {
        call.inputs[owner] = {inputs[rank][owner].data(), shards[owner] * width};
      }
      require(reduce_scatter_either_way(ranks_->team(rank), call, locations[rank], ranks_->stream(rank)));
    });
    ranks_->synchronize();
    ranks_->expect_no_faults();
    expect_states(*ranks_, num_zero_copy_, way == Way::kZeroCopy ? 0 : 1, what.name());
    const Bytes total = reduced(what.dtype, what.reduction, contents);
    ranks_->for_each([&](int rank) {
      const size_t begin = std::accumulate(shards.begin(), shards.begin() + rank, size_t{0}) * width;
      outputs[rank].expect_contents(Bytes(total.begin() + static_cast<ptrdiff_t>(begin),
                                          total.begin() + static_cast<ptrdiff_t>(begin + shards[rank] * width)),
                                    what.name() + ", shard " + std::to_string(rank));
    });
  }

  std::mt19937 random_{20261122};
  uint32_t num_zero_copy_ = 0;
};

TEST_P(ZeroCopyReductions, all_reduce_of_all_sizes) {
  for (const size_t num_elements :
       {0, 1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 255, 256, 511, 1023, 1024, 1025, 4099, 100'003, (1 << 20) + 3}) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16, DataType::kInt8}) {
      check({num_elements, dtype});
    }
  }
}

TEST_P(ZeroCopyReductions, large_all_reduce) {
  check({(size_t{20} << 20 >> (ranks_->size() > 4 ? 3 : 0)) + 5, DataType::kBFloat16});
}

TEST_P(ZeroCopyReductions, all_types_and_reductions) {
  for (int dtype = 0; dtype <= static_cast<int>(DataType::kComplex128); ++dtype) {
    for (int reduction = 1; reduction <= static_cast<int>(Reduction::kPremulSum); ++reduction) {
      const Case what{12'347, static_cast<DataType>(dtype), static_cast<Reduction>(reduction)};
      if (kernels::has_kernel(what.dtype, what.reduction)) check(what);
    }
  }
}

TEST_P(ZeroCopyReductions, in_place) {
  for (const size_t num_elements : {size_t{5}, size_t{2050}, size_t{700'001}}) {
    const Reduced reduced(*ranks_, with_blocks({num_elements, DataType::kFloat16}), random_);
    ranks_->for_each([&](int rank) { require(reduced.enqueue_in_place(rank)); });
    reduced.expect_right_in_place();
    expect_states(*ranks_, ++num_zero_copy_, 0, "in place");
  }
}

TEST_P(ZeroCopyReductions, reduce_to_each_root) {
  for (int root = 0; root < ranks_->size(); ++root) {
    check({123'457, DataType::kFloat32, Reduction::kAverage, root});
    check({3, DataType::kInt64, Reduction::kMax, root});
  }
}

TEST_P(ZeroCopyReductions, any_grid) {
  for (const int num_blocks : {1, 2, 3, 8})
    check({100'001, DataType::kBFloat16, Reduction::kSum, cuda::kNoRoot, num_blocks});
}

TEST_P(ZeroCopyReductions, each_rank_has_a_grid_of_its_own) {
  for (const int root : {cuda::kNoRoot, 0}) check({100'001, DataType::kBFloat16, Reduction::kSum, root, 2, 3});
}

TEST_P(ZeroCopyReductions, reduce_scatter_even) {
  for (const size_t shard : {1, 7, 240, 4096, 100'003}) {
    const size_t all = shard * ranks_->size();
    check_reduce_scatter({all, DataType::kFloat32}, std::vector<size_t>(ranks_->size(), shard));
    check_reduce_scatter({all, DataType::kBFloat16, Reduction::kAverage}, std::vector<size_t>(ranks_->size(), shard));
  }
}

TEST_P(ZeroCopyReductions, reduce_scatter_uneven) {
  for (int round = 0; round < 5; ++round) {
    std::vector<size_t> shards(ranks_->size());
    for (size_t& shard : shards) shard = random_() % 3 == 0 ? 0 : random_() % 20'000;
    check_reduce_scatter({std::accumulate(shards.begin(), shards.end(), size_t{0}), DataType::kInt32}, shards);
  }
}

// The zero-copy and the LL128 kernel announce different sizes then; ranks that have completed the handshake do not
// repeat it.
TEST_P(ZeroCopyReductions, reduce_scatter_uneven_and_fallen_back) {
  std::vector<size_t> shards(ranks_->size());
  std::iota(shards.begin(), shards.end(), size_t{10'000});
  const size_t all = std::accumulate(shards.begin(), shards.end(), size_t{0});
  for (const Way way : {Way::kFallBack, Way::kZeroCopy, Way::kFallBack}) {
    check_reduce_scatter({all, DataType::kInt64}, shards, way);
  }
}

// One rank has not mapped one tensor that it needs: all fall back, and the LL128 kernel does the work.
TEST_P(ZeroCopyReductions, a_miss_on_one_rank_makes_all_fall_back) {
  const Case what = with_blocks({100'003, DataType::kBFloat16});
  for (int rank = 0; rank < ranks_->size(); ++rank) {
    const int owner = (rank + 1) % ranks_->size();
    for (const auto location :
         {&kernels::zero_copy::ReduceLocations::input, &kernels::zero_copy::ReduceLocations::output}) {
      const Reduced reduced(*ranks_, what, random_);
      ranks_->withdraw(rank, owner, reduced.locations(owner).*location);
      ranks_->for_each([&](int each) { require(reduced.enqueue(each)); });
      reduced.expect_right();
      expect_states(*ranks_, num_zero_copy_, 1, "without a segment");
    }
    check(what);
  }
}

TEST_P(ZeroCopyReductions, a_misaligned_tensor_makes_all_fall_back) {
  constexpr size_t kElements = 50'000;
  std::vector<Bytes> contents;
  std::vector<DeviceBuffer> tensors;
  std::vector<cuda::IpcLocation> locations;
  const int odd = ranks_->size() - 1;
  ranks_->for_each([&](int rank) {
    contents.push_back(draw(DataType::kFloat32, kElements, random_));
    tensors.emplace_back(kElements * 4, rank == odd ? 4 : 0);
    tensors[rank].upload(contents[rank]);
    locations.push_back(ranks_->publish(rank, tensors[rank].data()));
  });
  ranks_->for_each([&](int rank) {
    std::byte* tensor = tensors[rank].data();
    require(all_reduce_either_way(
        ranks_->team(rank),
        {.input = tensor,
         .output = tensor,
         .num_elements = kElements,
         .dtype = DataType::kFloat32,
         .reduction = Reduction::kSum},
        {.input = locations[rank], .output = locations[rank], .num_blocks = num_zero_copy_blocks(GetParam())},
        ranks_->stream(rank)));
  });
  ranks_->synchronize();
  ranks_->expect_no_faults();
  expect_states(*ranks_, 0, 1, "misaligned");
  const Bytes expected = reduced(DataType::kFloat32, Reduction::kSum, contents);
  ranks_->for_each([&](int rank) { tensors[rank].expect_contents(expected, "rank " + std::to_string(rank)); });
}

// Zero-copy kernels, kernels that have fallen back, and LL packets alternate over one epoch.
TEST_P(ZeroCopyReductions, random_sequence_with_ll128_and_ll) {
  std::vector<std::unique_ptr<Reduced>> operations;
  for (int number = 0; number < 100; ++number) {
    const Case what{random_() % 60'000, DataType::kBFloat16, Reduction::kSum, cuda::kNoRoot,
                    static_cast<int>(1 + random_() % 4)};
    operations.push_back(std::make_unique<Reduced>(*ranks_, what, random_));
    if (number % 3 != 0) continue;
    const int owner = static_cast<int>(random_() % ranks_->size());
    ranks_->withdraw((owner + 1) % ranks_->size(), owner, operations.back()->locations(owner).input);
  }
  std::vector<DeviceBuffer> small;
  ranks_->for_each([&](int rank) {
    small.emplace_back(64);
    small[rank].upload(Bytes(64));
  });
  for (size_t number = 0; number < operations.size(); ++number) {
    ranks_->for_each([&](int rank) {
      require(operations[number]->enqueue(rank));
      if (number % 5 != 0) return;
      const kernels::ll::LlCollective call{.input = small[rank].data(),
                                           .output = small[rank].data(),
                                           .num_elements = 16,
                                           .dtype = DataType::kFloat32,
                                           .reduction = Reduction::kSum};
      require(kernels::ll::all_reduce_one_shot(ranks_->team(rank), call, ranks_->stream(rank)));
    });
  }
  for (const auto& operation : operations) operation->expect_right();
  EXPECT_GT(ranks_->state(0).num_zero_copy, 50u);
}

INSTANTIATE_TEST_SUITE_P(layouts, ZeroCopyReductions, kLayouts, name_of);

}  // namespace
}  // namespace axon::testing
