// Pieces that copy engines bring: taken to where they belong and folded, behind their flags. One rank's kernel; what
// its peers' engines do, this test does.
#include "device/take_pieces.hpp"

#include <gtest/gtest.h>

#include "device/fold_types.hpp"
#include "device/reference.hpp"

namespace axon::testing {
namespace {

constexpr uint32_t kEpoch = 7;
constexpr int kRank = 1;
constexpr uint64_t kShortestPiece = 1024;

class TakePiecesTest : public LayoutTest {
 protected:
  void SetUp() override {
    LayoutTest::SetUp();
    if (IsSkipped()) return;
    require(load_kernels(num_ranks()));
    flags_.emplace(require(DeviceMemory::allocate(kMaxTeamRanks * kMostPieces * sizeof(uint32_t))));
    side_.emplace(require(Stream::create()));
  }

  static int num_ranks() { return GetParam().num_ranks; }
  static TeamOptions options(uint64_t timeout_ns = 5'000'000'000) {
    return {.block_bytes = kMinBlockBytes, .first_epoch = kEpoch + 1, .timeout_ns = timeout_ns};
  }

  uint32_t* flags_of(int rank) const { return reinterpret_cast<uint32_t*>(flags_->data()) + rank * kMostPieces; }

  // Every message of every peer has come, in this epoch.
  void tell_all() const {
    const std::vector<uint32_t> words(kMaxTeamRanks * kMostPieces, kEpoch);
    require(
        cudaMemcpyAsync(flags_->data(), words.data(), words.size() * 4, cudaMemcpyHostToDevice, side_->view().get()));
    require(side_->view().synchronize());
  }

  PieceTaking taking(DataType dtype) const {
    return {.operation = DeviceOperation::kAllGather,
            .dtype = dtype,
            .messages = {},
            .shortest_piece = kShortestPiece,
            .first_piece = 0,
            .end_of_pieces = kMostPieces,
            .num_blocks = 3};
  }

  IncomingMessage message(int rank, const DeviceBuffer& data, std::byte* target) const {
    return {.data = data.data(),
            .target = target,
            .num_bytes = data.num_bytes(),
            .flags = rank == kRank ? nullptr : flags_of(rank)};
  }

  void fold(const DeviceRanks& ranks, device::FoldType type, size_t num_elements, size_t misalignment);

  std::optional<DeviceMemory> flags_;
  std::optional<Stream> side_;
  std::mt19937 random_{3};
};

INSTANTIATE_TEST_SUITE_P(Layouts, TakePiecesTest,
                         ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kOneGpu, 3},
                                           Layout{Placement::kOneGpu, 8}),
                         name_of);

// The kernel runs before anything has come.
TEST_P(TakePiecesTest, messages_of_any_length_and_alignment_are_copied_once_they_are_there) {
  const DeviceRanks ranks(GetParam().devices(), options());
  for (const size_t misalignment : {0, 1, 4, 8}) {
    std::vector<Bytes> contents;
    std::vector<DeviceBuffer> sources;
    std::vector<DeviceBuffer> targets;
    PieceTaking call = taking(DataType::kByte);
    require(cudaMemset(flags_->data(), 0, kMaxTeamRanks * kMostPieces * sizeof(uint32_t)));
    for (int rank = 0; rank < num_ranks(); ++rank) {
      const size_t num_bytes = rank == 2 ? 0 : size_t{100'003} * static_cast<size_t>(rank + 1);
      contents.push_back(random_bytes(num_bytes, random_));
      sources.emplace_back(num_bytes, rank == kRank ? misalignment : 0);
      targets.emplace_back(num_bytes, misalignment);
      if (num_bytes != 0) sources.back().upload(contents.back());
    }
    for (int rank = 0; rank < num_ranks(); ++rank) {
      const auto index = static_cast<size_t>(rank);
      call.messages[index] = message(rank, sources[index], targets[index].data());
    }
    require(copy_pieces(ranks.team(kRank), call, ranks.stream(kRank)));
    tell_all();
    require(ranks.stream(kRank).synchronize());
    ranks.expect_no_faults();
    for (size_t rank = 0; rank < targets.size(); ++rank) {
      targets[rank].expect_contents(contents[rank], "message of rank " + std::to_string(rank));
    }
  }
}

// In place, as an all_reduce folds.
void TakePiecesTest::fold(const DeviceRanks& ranks, device::FoldType type, size_t num_elements, size_t misalignment) {
  const size_t num_bytes = num_elements * size_of(type.dtype);
  std::vector<Bytes> contents;
  std::vector<DeviceBuffer> sources;
  PieceTaking call = taking(type.dtype);
  for (int rank = 0; rank < num_ranks(); ++rank) {
    contents.push_back(draw(type.dtype, num_elements, random_));
    sources.emplace_back(num_bytes, rank == kRank ? misalignment : 0);
    sources.back().upload(contents.back());
  }
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const auto index = static_cast<size_t>(rank);
    call.messages[index] = message(rank, sources[index], nullptr);
  }
  const DeviceBuffer& own = sources[kRank];
  const PieceFold to{.output = own.data(), .reduction = type.reduction, .premul_factor = kPremulFactor};
  require(fold_pieces(ranks.team(kRank), call, to, ranks.stream(kRank)));
  require(ranks.stream(kRank).synchronize());
  ranks.expect_no_faults();
  own.expect_contents(reduced(type.dtype, type.reduction, contents),
                      std::string(name_of(type.dtype)) + " " + name_of(type.reduction) + " of " +
                          std::to_string(num_elements) + ", " + std::to_string(misalignment) + " bytes off");
}

TEST_P(TakePiecesTest, every_type_and_reduction_is_folded_as_on_the_host) {
  const DeviceRanks ranks(GetParam().devices(), options());
  tell_all();
  for (const device::FoldType type : device::all_folds()) {
    for (const size_t num_elements : {size_t{1}, size_t{777}, size_t{40'000}}) fold(ranks, type, num_elements, 0);
    fold(ranks, type, 5001, size_of(type.dtype));
  }
}

// All but the last piece of one peer is there.
TEST_P(TakePiecesTest, a_piece_that_does_not_come_is_a_timeout_that_names_the_peer) {
  DeviceRanks ranks(GetParam().devices(), options(50'000'000));
  tell_all();
  const int late = num_ranks() == 2 ? 0 : 2;
  std::vector<DeviceBuffer> sources;
  PieceTaking call = taking(DataType::kByte);
  for (int rank = 0; rank < num_ranks(); ++rank) sources.emplace_back(100'000);
  DeviceBuffer target(100'000);
  for (int rank = 0; rank < num_ranks(); ++rank) {
    call.messages[static_cast<size_t>(rank)] = message(rank, sources[static_cast<size_t>(rank)], target.data());
  }
  const uint32_t last = Cut::of(100'000, kShortestPiece).num_pieces() - 1;
  require(cudaMemset(flags_of(late) + last, 0, sizeof(uint32_t)));
  require(copy_pieces(ranks.team(kRank), call, ranks.stream(kRank)));
  require(ranks.stream(kRank).synchronize());
  const FaultReport& report = ranks.mailbox(kRank).report;
  EXPECT_EQ(code_of(ranks.mailbox(kRank)), FaultCode::kTimeout);
  EXPECT_EQ(report.peer, late) << describe(report);
  EXPECT_EQ(report.sequence, kEpoch);
}

TEST_P(TakePiecesTest, abort_ends_the_wait) {
  DeviceRanks ranks(GetParam().devices(), options(60'000'000'000));
  require(cudaMemset(flags_->data(), 0, kMaxTeamRanks * kMostPieces * sizeof(uint32_t)));
  const DeviceBuffer source(100'000);
  const DeviceBuffer target(100'000);
  PieceTaking call = taking(DataType::kByte);
  call.messages[0] = message(0, source, target.data());
  require(copy_pieces(ranks.team(kRank), call, ranks.stream(kRank)));
  std::atomic_ref(ranks.mailbox(kRank).abort).store(1, std::memory_order_relaxed);
  require(ranks.stream(kRank).synchronize());
  EXPECT_EQ(code_of(ranks.mailbox(kRank)), FaultCode::kAborted);
  target.expect_contents(Bytes(100'000, std::byte{0xA5}), "nothing was taken");
}

}  // namespace
}  // namespace axon::testing
