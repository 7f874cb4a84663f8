// LL128 kernels return with a report, and the GPU stays usable, if peers are missing, abort, or disagree.
#include <atomic>
#include <thread>

#include "kernels/device_buffer.hpp"
#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/load.hpp"

namespace axon::testing {
namespace {

constexpr uint64_t kShortTimeoutNs = 50'000'000;
constexpr size_t kElements = 500'000;  // more than the rings hold

class Ll128Faults : public LayoutTest {
 protected:
  // Allocate tensors before any kernel: allocation waits for the device.
  void SetUp() override {
    LayoutTest::SetUp();
    if (IsSkipped()) return;
    for (const int device : GetParam().devices()) {
      cuda::DeviceGuard guard(device);
      require(kernels::load_kernels(GetParam().num_ranks));
      tensors_.emplace_back(kElements * 4 + 8);
    }
  }

  DeviceRanks ranks(uint64_t timeout_ns = 5'000'000'000) const {
    return DeviceRanks(GetParam().devices(), {.slice_bytes = GetParam().slice_bytes(), .timeout_ns = timeout_ns});
  }

  void all_reduce(const DeviceRanks& ranks, int rank, size_t num_elements = kElements) {
    cuda::DeviceGuard guard(ranks.device(rank));
    require(kernels::ll128::all_reduce(ranks.team(rank),
                                       {.input = tensors_[rank].data(),
                                        .output = tensors_[rank].data(),
                                        .num_elements = num_elements,
                                        .dtype = DataType::kFloat32,
                                        .reduction = Reduction::kSum},
                                       ranks.stream(rank)));
  }

  void expect_usable() {
    DeviceRanks fresh = ranks();
    for (int rank = 0; rank < fresh.size(); ++rank) all_reduce(fresh, rank);
    fresh.synchronize();
    fresh.expect_no_faults();
  }

  std::vector<DeviceBuffer> tensors_;
};

TEST_P(Ll128Faults, missing_rank_times_out_and_is_named) {
  DeviceRanks ranks = this->ranks(kShortTimeoutNs);
  for (int rank = 0; rank < ranks.size() - 1; ++rank) all_reduce(ranks, rank);
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size() - 1; ++rank) {
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kTimeout);
    EXPECT_GE(ranks.control(rank).report.peer, 0);
    EXPECT_EQ(ranks.control(rank).report.ours.num_bytes, kElements * 4);
    if (ranks.size() == 2) {
      EXPECT_EQ(ranks.control(rank).report.peer, 1);
    }
  }
  expect_usable();
}

TEST_P(Ll128Faults, abort_ends_the_wait_and_all_later_launches) {
  DeviceRanks ranks = this->ranks(60'000'000'000);
  for (int operation = 0; operation < 100; ++operation) {
    for (int rank = 0; rank < ranks.size() - 1; ++rank) all_reduce(ranks, rank);
  }
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::atomic_ref(ranks.control(rank).abort).store(1, std::memory_order_release);
  }
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size() - 1; ++rank)
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kAborted);
  expect_usable();
}

// A rank that does not wait for the last one itself waits for a rank that does; its host ends it.
TEST_P(Ll128Faults, a_rank_whose_process_has_ended_is_named) {
  DeviceRanks ranks = this->ranks(60'000'000'000);
  const int last = ranks.size() - 1;
  for (int rank = 0; rank < last; ++rank) all_reduce(ranks, rank);
  for (int rank = 0; rank < last; ++rank) {
    std::atomic_ref(ranks.control(rank).gone).store(1u << last, std::memory_order_release);
  }
  const auto has_fault = [&](int rank) { return code_of(ranks.control(rank)) != cuda::FaultCode::kNone; };
  while (!has_fault(0)) std::this_thread::yield();
  EXPECT_EQ(code_of(ranks.control(0)), cuda::FaultCode::kGone);
  EXPECT_EQ(ranks.control(0).report.peer, last);
  for (int rank = 0; rank < last; ++rank) {
    std::atomic_ref(ranks.control(rank).abort).store(1, std::memory_order_release);
  }
  ranks.synchronize();
  expect_usable();
}

TEST_P(Ll128Faults, mismatch_is_seen_by_both_sides) {
  DeviceRanks ranks = this->ranks();
  const int odd = ranks.size() - 1;
  for (int rank = 0; rank < ranks.size(); ++rank) all_reduce(ranks, rank, rank == odd ? kElements + 1 : kElements);
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kMismatch) << "rank " << rank;
    const cuda::FaultReport& report = ranks.control(rank).report;
    EXPECT_EQ(report.ours.num_bytes, 4 * (rank == odd ? kElements + 1 : kElements));
    EXPECT_EQ(report.theirs.num_bytes, 4 * (rank == odd ? kElements : kElements + 1));
    if (rank != odd) {
      EXPECT_EQ(report.peer, odd);
    }
  }
  expect_usable();
}

// The two protocols run in one epoch.
TEST_P(Ll128Faults, mismatch_between_ll_and_ll128) {
  DeviceRanks ranks = this->ranks();
  const int odd = ranks.size() - 1;
  for (int rank = 0; rank < odd; ++rank) all_reduce(ranks, rank);
  {
    cuda::DeviceGuard guard(ranks.device(odd));
    require(kernels::ll::all_reduce_one_shot(ranks.team(odd),
                                             {.input = tensors_[odd].data(),
                                              .output = tensors_[odd].data(),
                                              .num_elements = 10,
                                              .dtype = DataType::kFloat32,
                                              .reduction = Reduction::kSum},
                                             ranks.stream(odd)));
  }
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kMismatch) << "rank " << rank;
  }
  expect_usable();
}

TEST_P(Ll128Faults, point_to_point_mismatch_names_tags) {
  DeviceRanks ranks = this->ranks();
  kernels::ExchangeCall send{.traffic = cuda::TrafficClass::kPointToPoint,
                             .operation = cuda::DeviceOperation::kPointToPoint,
                             .sends_to = 1u << 1};
  send.sends[1] = {tensors_[0].data(), 1000, 7};
  kernels::ExchangeCall receive{.traffic = cuda::TrafficClass::kPointToPoint,
                                .operation = cuda::DeviceOperation::kPointToPoint,
                                .receives_from = 1u << 0};
  receive.receives[0] = {tensors_[1].data(), 1000, 8};
  ranks.for_each([&](int rank) {
    if (rank < 2) require(kernels::ll128::exchange(ranks.team(rank), rank == 0 ? send : receive, ranks.stream(rank)));
  });
  ranks.synchronize();
  EXPECT_EQ(code_of(ranks.control(0)), cuda::FaultCode::kNone);
  ASSERT_EQ(code_of(ranks.control(1)), cuda::FaultCode::kMismatch);
  EXPECT_EQ(ranks.control(1).report.peer, 0);
  EXPECT_EQ(ranks.control(1).report.our_tag, 8u);
  EXPECT_EQ(ranks.control(1).report.their_tag, 7u);
  expect_usable();
}

INSTANTIATE_TEST_SUITE_P(layouts, Ll128Faults, kLayouts, name_of);

}  // namespace
}  // namespace axon::testing
