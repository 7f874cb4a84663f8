#include "kernels/ll/collectives.hpp"

#include "kernels/device_ranks.hpp"
#include "kernels/reduce_types.hpp"
#include "kernels/reference.hpp"

namespace axon::testing {
namespace {

using Algorithm = Status (*)(const cuda::DeviceTeam&, const kernels::ll::LlCollective&, cuda::StreamView);

struct Case {
  Algorithm algorithm;
  size_t num_elements;
  DataType dtype = DataType::kFloat32;
  Reduction reduction = Reduction::kSum;
  cuda::LaunchShape shape{};

  size_t num_bytes() const { return num_elements * size_of(dtype); }
  Bytes expected(const std::vector<Bytes>& inputs) const {
    return algorithm == kernels::ll::all_gather ? concatenated(inputs) : reduced(dtype, reduction, inputs);
  }
};

// One operation's tensors on every rank. Rank r's tensors start r elements into their allocation, and the output lies
// between two bands of poison. In-place operations read and write the same tensor.
class Tensors {
 public:
  Tensors(const DeviceRanks& ranks, const Case& what, std::mt19937& random) : ranks_(ranks), what_(what) {
    ranks.for_each([&](int rank) {
      inputs_.push_back(draw(what.dtype, what.num_elements, random));
      offsets_.push_back(rank * size_of(what.dtype));
      input_.push_back(require(cuda::DeviceMemory::allocate(what.num_bytes() + offsets_[rank] + 1)));
      output_.push_back(require(cuda::DeviceMemory::allocate(output_bytes() + offsets_[rank] + 2 * kBand)));
      require(cudaMemset(output_[rank].data(), 0xA5, output_bytes() + offsets_[rank] + 2 * kBand));
      upload(input(rank), inputs_[rank]);
    });
  }

  std::byte* input(int rank) const { return input_[rank].data() + offsets_[rank]; }
  std::byte* output(int rank) const { return output_[rank].data() + kBand + offsets_[rank]; }

  void run() const {
    ranks_.for_each([&](int rank) { enqueue(rank, input(rank)); });
  }

  void run_in_place() const {
    const bool gathers = what_.algorithm == kernels::ll::all_gather;
    ranks_.for_each([&](int rank) { upload(own_location(rank, gathers), inputs_[rank]); });
    ranks_.for_each([&](int rank) { enqueue(rank, own_location(rank, gathers)); });
  }

  void enqueue(int rank, const std::byte* input) const {
    const kernels::ll::LlCollective call{.input = input,
                                         .output = output(rank),
                                         .num_elements = what_.num_elements,
                                         .dtype = what_.dtype,
                                         .reduction = what_.reduction,
                                         .premul_factor = kPremulFactor,
                                         .shape = what_.shape};
    require(what_.algorithm(ranks_.team(rank), call, ranks_.stream(rank)));
  }

  void expect_right() const {
    ranks_.synchronize();
    ranks_.expect_no_faults();
    const Bytes expected = what_.expected(inputs_);
    const Bytes poison(kBand, std::byte{0xA5});
    ranks_.for_each([&](int rank) {
      const Bytes found = download(output(rank) - kBand, output_bytes() + 2 * kBand);
      EXPECT_TRUE(std::equal(poison.begin(), poison.end(), found.begin())) << "rank " << rank << " wrote before";
      EXPECT_TRUE(std::equal(poison.begin(), poison.end(), found.end() - kBand))
          << "rank " << rank << " wrote past the end";
      const auto at = std::mismatch(expected.begin(), expected.end(), found.begin() + kBand).first - expected.begin();
      EXPECT_EQ(static_cast<size_t>(at), expected.size())
          << "rank " << rank << " of " << ranks_.size() << ", " << what_.num_elements << " x "
          << axon::name_of(what_.dtype) << " " << axon::name_of(what_.reduction) << ", first wrong byte " << at;
    });
  }

 private:
  static constexpr size_t kBand = 64;

  size_t output_bytes() const {
    return what_.num_bytes() * (what_.algorithm == kernels::ll::all_gather ? ranks_.size() : 1);
  }
  std::byte* own_location(int rank, bool gathers) const {
    return output(rank) + (gathers ? rank * what_.num_bytes() : 0);
  }

  static void upload(std::byte* to, const Bytes& bytes) {
    require(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    require(cudaDeviceSynchronize());
  }
  static Bytes download(const std::byte* from, size_t num_bytes) {
    Bytes bytes(num_bytes);
    require(cudaMemcpy(bytes.data(), from, num_bytes, cudaMemcpyDeviceToHost));
    return bytes;
  }

  const DeviceRanks& ranks_;
  Case what_;
  std::vector<size_t> offsets_;
  std::vector<Bytes> inputs_;
  std::vector<cuda::DeviceMemory> input_, output_;
};

constexpr Algorithm kAlgorithms[] = {kernels::ll::all_reduce_one_shot, kernels::ll::all_reduce_two_shot,
                                     kernels::ll::all_gather};

class LlCollectives : public LayoutTest {
 protected:
  void SetUp() override {
    LayoutTest::SetUp();
    if (IsSkipped()) return;
    start({});
  }

  void start(TeamOptions options) {
    ranks_ = std::make_unique<DeviceRanks>(GetParam().devices(), options);
    ranks_->for_each([this](int) { require(kernels::ll::load_kernels(ranks_->size())); });
  }

  void check(const Case& what) {
    Tensors tensors(*ranks_, what, random_);
    tensors.run();
    tensors.expect_right();
  }

  std::unique_ptr<DeviceRanks> ranks_;
  std::mt19937 random_{20261121};
};

TEST_P(LlCollectives, all_sizes_and_alignments) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const size_t num_elements : {0, 1, 2, 3, 5, 31, 64, 257, 1000, 4099}) {
      for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) check({algorithm, num_elements, dtype});
    }
  }
}

TEST_P(LlCollectives, all_types_and_reductions) {
  for (const auto& [dtype, reduction] : kernels::all_reduction_types()) {
    for (const Algorithm algorithm : {kernels::ll::all_reduce_one_shot, kernels::ll::all_reduce_two_shot}) {
      check({algorithm, 517, dtype, reduction});
    }
  }
}

TEST_P(LlCollectives, bytes_are_gathered) {
  check({kernels::ll::all_gather, 1237, DataType::kUint8, Reduction::kNone});
}

TEST_P(LlCollectives, in_place) {
  for (const Algorithm algorithm : kAlgorithms) {
    Tensors tensors(*ranks_, {algorithm, 2050, DataType::kFloat16}, random_);
    tensors.run_in_place();
    tensors.expect_right();
  }
}

// Each worker handles several packets, and grids change from one launch to the next.
TEST_P(LlCollectives, any_grid) {
  for (const cuda::LaunchShape shape : {cuda::LaunchShape{1, 32}, {2, 64}, {7, 32}, {4, 512}, {12, 128}}) {
    for (const Algorithm algorithm : kAlgorithms) check({algorithm, 3001, DataType::kFloat32, Reduction::kSum, shape});
  }
}

// The test starts just before the epoch wraps; some packets are last written long before they are read again.
TEST_P(LlCollectives, epoch_wraps) {
  start({.slice_bytes = kernels::kMinSliceBytes, .first_epoch = 0xFFFF'FFF0});
  for (int round = 0; round < 48; ++round) {
    const Algorithm algorithm = kAlgorithms[round % 3];
    check({algorithm, round % 7 == 0 ? size_t{900} : size_t{9}});
  }
}

// Unread packets in the arena are stamped once in 2²⁰ epochs, so that no stale epoch survives 2³² of them.
TEST_P(LlCollectives, stale_packets_are_wiped) {
  constexpr uint32_t kFirst = (1u << 20) - 4;
  start({.slice_bytes = kernels::kMinSliceBytes, .first_epoch = kFirst});
  for (int operation = 0; operation < 10; ++operation) check({kernels::ll::all_reduce_one_shot, 1});
  ranks_->for_each([&](int rank) {
    const cuda::DeviceTeam& team = ranks_->team(rank);
    std::vector<cuda::LlPacket> packets(2 * team.layout.region_packets);
    require(cudaMemcpy(packets.data(), team.slices[rank] + team.layout.packets, packets.size() * sizeof(cuda::LlPacket),
                       cudaMemcpyDeviceToHost));
    for (const cuda::LlPacket& packet : packets) EXPECT_GE(packet.low_epoch, kFirst);
  });
}

// One rank's host runs far ahead: no launch waits for a peer's launch.
TEST_P(LlCollectives, one_rank_enqueues_far_ahead) {
  Tensors tensors(*ranks_, {kernels::ll::all_reduce_one_shot, 100}, random_);
  constexpr int kAhead = 200;
  ranks_->for_each([&](int rank) {
    for (int operation = 0; operation < kAhead; ++operation) tensors.enqueue(rank, tensors.input(rank));
  });
  tensors.expect_right();
}

TEST_P(LlCollectives, random_sequence) {
  constexpr size_t kMany = 300;
  std::vector<std::unique_ptr<Tensors>> all;
  for (size_t operation = 0; operation < kMany; ++operation) {
    const DataType dtype = random_() % 2 == 0 ? DataType::kBFloat16 : DataType::kInt32;
    const size_t num_elements = random_() % (random_() % 4 == 0 ? 5000 : 200);
    all.push_back(std::make_unique<Tensors>(*ranks_, Case{kAlgorithms[random_() % 3], num_elements, dtype}, random_));
  }
  ranks_->for_each([](int) { require(cudaDeviceSynchronize()); });
  for (const auto& tensors : all) tensors->run();
  for (const auto& tensors : all) tensors->expect_right();
}

INSTANTIATE_TEST_SUITE_P(layouts, LlCollectives, kLayouts, name_of);

TEST(LlCollectivesArguments, refused_before_any_launch) {
  cuda::DeviceTeam team = team_without_memory();
  team.layout.region_packets = 64;
  const cuda::StreamView none(nullptr);
  const auto code_of = [&](const kernels::ll::LlCollective& call) {
    return kernels::ll::all_reduce_one_shot(team, call, none).code();
  };
  EXPECT_EQ(code_of({.num_elements = 1000, .dtype = DataType::kFloat32, .reduction = Reduction::kSum}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.num_elements = 4, .dtype = DataType::kBool, .reduction = Reduction::kAverage}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.num_elements = 4, .dtype = DataType::kInt32, .reduction = Reduction::kPremulSum}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.num_elements = 4, .dtype = DataType::kFloat32, .reduction = Reduction::kSum, .shape = {99, 32}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.num_elements = 4, .dtype = DataType::kFloat32, .reduction = Reduction::kSum, .shape = {1, 0}}),
            ErrorCode::kInvalidArgument);
}

TEST(LlCollectivesArguments, region_sizes) {
  EXPECT_EQ(kernels::ll::one_shot_region_packets(4, 1024), 4u + 4 * 128);
  EXPECT_EQ(kernels::ll::two_shot_region_packets(4, 1024), 4u + 2 * 128);
  EXPECT_EQ(kernels::ll::two_shot_region_packets(3, 9), 3u + 2 * 3);
}

}  // namespace
}  // namespace axon::testing
