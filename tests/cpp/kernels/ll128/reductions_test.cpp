// all_reduce, reduce, reduce_scatter and broadcast over LL128.
#include <numeric>

#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/reference.hpp"

namespace axon::testing {
namespace {

struct Case {
  size_t num_elements;
  DataType dtype = DataType::kFloat32;
  Reduction reduction = Reduction::kSum;
  size_t misalignment = 0;  // in elements
  int root = cuda::kNoRoot;
  kernels::Ll128Shape shape{};

  size_t num_bytes() const { return num_elements * size_of(dtype); }
  std::string name() const { return std::to_string(num_elements) + " x " + name_of(dtype) + " " + name_of(reduction); }
};

class Ll128Reductions : public RanksTest {
 protected:
  // One buffer per rank; rank r's buffer is r elements further off.
  std::vector<DeviceBuffer> buffers(const Case& what, size_t num_bytes) const {
    std::vector<DeviceBuffer> all;
    ranks_->for_each([&](int rank) { all.emplace_back(num_bytes, (what.misalignment + rank) * size_of(what.dtype)); });
    return all;
  }

  std::vector<Bytes> draw_inputs(const Case& what) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      inputs.push_back(draw(what.dtype, what.num_elements, random_));
    }
    return inputs;
  }

  void expect(const std::vector<DeviceBuffer>& outputs, const Bytes& expected, const Case& what) const {
    ranks_->synchronize();
    ranks_->expect_no_faults();
    ranks_->for_each([&](int rank) {
      if (what.root == cuda::kNoRoot || what.root == rank) {
        outputs[rank].expect_contents(
            expected, what.name() + ", rank " + std::to_string(rank) + " of " + std::to_string(ranks_->size()));
      }
    });
  }

  void enqueue(int rank, const Case& what, const void* input, void* output) const {
    const kernels::ReduceCall call{.input = input,
                                   .output = output,
                                   .num_elements = what.num_elements,
                                   .dtype = what.dtype,
                                   .reduction = what.reduction,
                                   .premul_factor = kPremulFactor,
                                   .root = what.root,
                                   .shape = what.shape};
    require(kernels::ll128::all_reduce(ranks_->team(rank), call, ranks_->stream(rank)));
  }

  void check(const Case& what) {
    const std::vector<Bytes> contents = draw_inputs(what);
    const std::vector<DeviceBuffer> inputs = buffers(what, what.num_bytes());
    const std::vector<DeviceBuffer> outputs = buffers(what, what.num_bytes());
    ranks_->for_each([&](int rank) { inputs[rank].upload(contents[rank]); });
    ranks_->for_each([&](int rank) { enqueue(rank, what, inputs[rank].data(), outputs[rank].data()); });
    expect(outputs, reduced(what.dtype, what.reduction, contents), what);
  }

  // Element counts of the shards; ranks see different bases.
  void check_reduce_scatter(const Case& what, const std::vector<size_t>& shards) {
    const std::vector<Bytes> contents = draw_inputs(what);
    const std::vector<DeviceBuffer> inputs = buffers(what, what.num_bytes());
    std::vector<DeviceBuffer> outputs;
    const size_t width = size_of(what.dtype);
    ranks_->for_each([&](int rank) {
      inputs[rank].upload(contents[rank]);
      outputs.emplace_back(shards[rank] * width, what.misalignment * width);
    });
    ranks_->for_each([&](int rank) {
      kernels::ReduceScatterCall call{.output = outputs[rank].data(),
                                      .dtype = what.dtype,
                                      .reduction = what.reduction,
                                      .premul_factor = kPremulFactor,
                                      .shape = what.shape};
      size_t begin = 0;
      for (int owner = 0; owner < ranks_->size(); ++owner) {
        call.inputs[owner] = {inputs[rank].data() + begin * width, shards[owner] * width};
        begin += shards[owner];
      }
      require(kernels::ll128::reduce_scatter(ranks_->team(rank), call, ranks_->stream(rank)));
    });
    ranks_->synchronize();
    ranks_->expect_no_faults();
    const Bytes total = reduced(what.dtype, what.reduction, contents);
    ranks_->for_each([&](int rank) {
      const auto begin = std::accumulate(shards.begin(), shards.begin() + rank, size_t{0}) * width;
      outputs[rank].expect_contents(Bytes(total.begin() + begin, total.begin() + begin + shards[rank] * width),
                                    what.name() + ", shard " + std::to_string(rank));
    });
  }

  std::mt19937 random_{20261121};
};

TEST_P(Ll128Reductions, all_reduce_of_all_sizes) {
  for (const size_t num_elements : {0, 1, 2, 30, 60, 120, 121, 240, 241, 1023, 1024, 1025, 100'003, (1 << 20) + 3}) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) check({num_elements, dtype});
  }
}

TEST_P(Ll128Reductions, large_all_reduce) {
  check({(size_t{20} << 20 >> (ranks_->size() > 4 ? 3 : 0)) + 5, DataType::kBFloat16});
}

TEST_P(Ll128Reductions, any_alignment) {
  for (const size_t misalignment : {1, 2, 3, 4, 7}) {
    check({50'001, DataType::kBFloat16, Reduction::kSum, misalignment});
    check({30'011, DataType::kFloat32, Reduction::kSum, misalignment});
    check({10'007, DataType::kUint8, Reduction::kSum, misalignment});
  }
}

TEST_P(Ll128Reductions, all_types_and_reductions) {
  for (int dtype = 0; dtype <= static_cast<int>(DataType::kComplex128); ++dtype) {
    for (int reduction = 1; reduction <= static_cast<int>(Reduction::kPremulSum); ++reduction) {
      const collectives::ReductionPlan plan{.dtype = static_cast<DataType>(dtype),
                                            .reduction = static_cast<Reduction>(reduction)};
      EXPECT_EQ(kernels::has_kernel(plan.dtype, plan.reduction), collectives::check(plan).ok()) << name_of(plan.dtype);
      if (kernels::has_kernel(plan.dtype, plan.reduction)) check({1237, plan.dtype, plan.reduction});
    }
  }
}

TEST_P(Ll128Reductions, in_place) {
  for (const size_t num_elements : {size_t{5}, size_t{2050}, size_t{700'001}}) {
    const Case what{num_elements, DataType::kFloat16};
    const std::vector<Bytes> contents = draw_inputs(what);
    const std::vector<DeviceBuffer> tensors = buffers(what, what.num_bytes());
    ranks_->for_each([&](int rank) { tensors[rank].upload(contents[rank]); });
    ranks_->for_each([&](int rank) { enqueue(rank, what, tensors[rank].data(), tensors[rank].data()); });
    expect(tensors, reduced(what.dtype, what.reduction, contents), what);
  }
}

TEST_P(Ll128Reductions, reduce_to_each_root) {
  for (int root = 0; root < ranks_->size(); ++root) {
    check({12'345, DataType::kFloat32, Reduction::kAverage, 0, root});
    check({1, DataType::kInt64, Reduction::kMax, 0, root});
  }
}

TEST_P(Ll128Reductions, any_shape) {
  for (const kernels::Ll128Shape shape : {kernels::Ll128Shape{1, 1}, {1, 16}, {2, 4}, {0, 16}, {1, 3}}) {
    if (ranks_->team(0).layout.traffic[0].num_channels < 2u * shape.num_channels) continue;
    check({40'000, DataType::kFloat32, Reduction::kSum, 0, cuda::kNoRoot, shape});
    check({40'001, DataType::kBFloat16, Reduction::kSum, 0, cuda::kNoRoot, shape});
  }
}

TEST_P(Ll128Reductions, reduce_scatter_even) {
  for (const size_t shard : {1, 7, 240, 241, 4096, 100'003}) {
    const size_t all = shard * ranks_->size();
    check_reduce_scatter({all, DataType::kFloat32}, std::vector<size_t>(ranks_->size(), shard));
    check_reduce_scatter({all, DataType::kBFloat16, Reduction::kAverage}, std::vector<size_t>(ranks_->size(), shard));
  }
}

TEST_P(Ll128Reductions, reduce_scatter_uneven) {
  for (int round = 0; round < 5; ++round) {
    std::vector<size_t> shards(ranks_->size());
    for (size_t& shard : shards) shard = random_() % 3 == 0 ? 0 : random_() % 20'000;
    const size_t all = std::accumulate(shards.begin(), shards.end(), size_t{0});
    check_reduce_scatter({all, DataType::kInt32}, shards);
  }
}

TEST_P(Ll128Reductions, broadcast_from_each_root) {
  for (int root = 0; root < ranks_->size(); ++root) {
    for (const size_t num_bytes : {0, 1, 960, 961, 5000, 3'000'001}) {
      const Case what{num_bytes, DataType::kUint8};
      const Bytes contents = random_bytes(num_bytes, random_);
      const std::vector<DeviceBuffer> tensors = buffers(what, num_bytes);
      tensors[root].upload(contents);
      ranks_->for_each([&](int rank) {
        require(kernels::ll128::broadcast(ranks_->team(rank),
                                          {.data = tensors[rank].data(), .num_bytes = num_bytes, .root = root},
                                          ranks_->stream(rank)));
      });
      expect(tensors, contents, what);
    }
  }
}

// LL128 lines and LL packets alternate over one epoch and one slice.
TEST_P(Ll128Reductions, random_sequence_with_ll) {
  struct Operation {
    Case what;
    std::vector<Bytes> contents;
    std::vector<DeviceBuffer> tensors;
  };
  std::vector<Operation> operations;
  for (int number = 0; number < 200; ++number) {
    const Case what{random_() % (random_() % 4 == 0 ? 50'000 : 300), DataType::kBFloat16};
    operations.push_back({what, draw_inputs(what), buffers(what, what.num_bytes())});
    ranks_->for_each([&](int rank) { operations.back().tensors[rank].upload(operations.back().contents[rank]); });
  }
  for (size_t number = 0; number < operations.size(); ++number) {
    const Operation& operation = operations[number];
    const bool is_small = operation.what.num_elements < 300;
    ranks_->for_each([&](int rank) {
      std::byte* tensor = operation.tensors[rank].data();
      if (!is_small || number % 2 == 0) return enqueue(rank, operation.what, tensor, tensor);
      const kernels::ll::LlCollective call{.input = tensor,
                                           .output = tensor,
                                           .num_elements = operation.what.num_elements,
                                           .dtype = operation.what.dtype,
                                           .reduction = operation.what.reduction};
      require(kernels::ll::all_reduce_one_shot(ranks_->team(rank), call, ranks_->stream(rank)));
    });
  }
  for (const Operation& operation : operations) {
    expect(operation.tensors, reduced(operation.what.dtype, operation.what.reduction, operation.contents),
           operation.what);
  }
}

INSTANTIATE_TEST_SUITE_P(layouts, Ll128Reductions, kLayouts, name_of);

}  // namespace
}  // namespace axon::testing
