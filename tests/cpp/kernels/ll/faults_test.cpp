// Kernels return with a code, and the GPU stays usable, if a rank never arrives, aborts, or disagrees.
#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/device_ranks.hpp"
#include "kernels/ll/collectives.hpp"

namespace axon::testing {
namespace {

constexpr uint64_t kShortTimeoutNs = 50'000'000;

class LlFaults : public LayoutTest {
 protected:
  // Enqueues an all_reduce of `num_elements` on the ranks below `num_present`.
  void enqueue(DeviceRanks& ranks, int num_present, size_t num_elements = 1000) {
    ranks.for_each([&](int rank) {
      if (rank >= num_present) return;
      if (buffers_.size() <= static_cast<size_t>(rank)) buffers_.push_back(require(cuda::DeviceMemory::allocate(8192)));
      require(kernels::ll::load_kernels(ranks.size()));
      require(kernels::ll::all_reduce_one_shot(ranks.team(rank), call(rank, num_elements), ranks.stream(rank)));
    });
  }

  kernels::ll::LlCollective call(int rank, size_t num_elements) const {
    return {.input = buffers_[rank].data(),
            .output = buffers_[rank].data(),
            .num_elements = num_elements,
            .dtype = DataType::kFloat32,
            .reduction = Reduction::kSum};
  }

  // Checks that a fresh team on the same GPUs works: no kernel still spins, and no state is poisoned.
  void expect_usable() {
    DeviceRanks fresh(GetParam().devices());
    enqueue(fresh, fresh.size());
    fresh.synchronize();
    for (int rank = 0; rank < fresh.size(); ++rank) EXPECT_EQ(code_of(fresh.control(rank)), cuda::FaultCode::kNone);
  }

  std::vector<cuda::DeviceMemory> buffers_;
};

TEST_P(LlFaults, missing_rank_times_out_and_is_named) {
  DeviceRanks ranks(GetParam().devices(), {.timeout_ns = kShortTimeoutNs});
  enqueue(ranks, ranks.size() - 1);
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size() - 1; ++rank) {
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kTimeout);
    EXPECT_EQ(ranks.control(rank).report.peer, ranks.size() - 1);
    EXPECT_EQ(ranks.control(rank).report.sequence, 1u);
  }
  expect_usable();
}

TEST_P(LlFaults, abort_ends_the_wait_and_all_later_launches) {
  DeviceRanks ranks(GetParam().devices(), {.timeout_ns = 60'000'000'000});
  for (int operation = 0; operation < 100; ++operation) enqueue(ranks, ranks.size() - 1);
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::atomic_ref(ranks.control(rank).abort).store(1, std::memory_order_release);
  }
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size() - 1; ++rank)
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kAborted);
  expect_usable();
}

// Marks the last rank as gone in the control memory of all others, as the host that detects it does.
void say_that_last_has_ended(DeviceRanks& ranks) {
  for (int rank = 0; rank < ranks.size() - 1; ++rank) {
    std::atomic_ref(ranks.control(rank).gone).store(1u << (ranks.size() - 1), std::memory_order_release);
  }
}

TEST_P(LlFaults, a_rank_whose_process_has_ended_is_named) {
  DeviceRanks ranks(GetParam().devices(), {.timeout_ns = 60'000'000'000});
  enqueue(ranks, ranks.size() - 1);
  say_that_last_has_ended(ranks);
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size() - 1; ++rank) {
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kGone);
    EXPECT_EQ(ranks.control(rank).report.peer, ranks.size() - 1);
  }
  expect_usable();
}

TEST_P(LlFaults, what_it_had_sent_before_is_taken) {
  DeviceRanks ranks(GetParam().devices(), {.timeout_ns = 60'000'000'000});
  const int last = ranks.size() - 1;
  for (int rank = 0; rank <= last; ++rank) buffers_.push_back(require(cuda::DeviceMemory::allocate(8192)));
  require(kernels::ll::load_kernels(ranks.size()));
  const auto launch = [&](int rank) {
    const cuda::DeviceGuard guard(ranks.device(rank));
    require(kernels::ll::all_reduce_one_shot(ranks.team(rank), call(rank, 1000), ranks.stream(rank)));
  };
  launch(last);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  say_that_last_has_ended(ranks);
  for (int rank = 0; rank < last; ++rank) launch(rank);
  ranks.synchronize();
  for (int rank = 0; rank <= last; ++rank) EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kNone);
}

TEST_P(LlFaults, mismatch_is_seen_by_both_sides) {
  DeviceRanks ranks(GetParam().devices());
  const int odd = ranks.size() - 1;
  enqueue(ranks, odd, 1000);
  ranks.for_each([&](int rank) {
    if (rank != odd) return;
    buffers_.push_back(require(cuda::DeviceMemory::allocate(8192)));
    require(kernels::ll::all_reduce_one_shot(ranks.team(rank), call(rank, 1001), ranks.stream(rank)));
  });
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kMismatch) << "rank " << rank;
    const cuda::FaultReport& report = ranks.control(rank).report;
    EXPECT_EQ(report.ours.num_bytes, rank == odd ? 4004u : 4000u);
    EXPECT_EQ(report.theirs.num_bytes, rank == odd ? 4000u : 4004u);
    if (rank != odd) {
      EXPECT_EQ(report.peer, odd);
    }
  }
  expect_usable();
}

INSTANTIATE_TEST_SUITE_P(layouts, LlFaults, kLayouts, name_of);

}  // namespace
}  // namespace axon::testing
