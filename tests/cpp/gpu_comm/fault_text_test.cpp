#include "gpu_comm/fault_text.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "gpu_comm/barrier_descriptor.hpp"

namespace axon::gpu_comm {
namespace {

cuda::DeviceDescriptor descriptor(cuda::DeviceOperation operation, Reduction reduction, uint64_t num_bytes) {
  return {.operation = static_cast<uint64_t>(operation),
          .dtype = static_cast<uint64_t>(DataType::kFloat32),
          .reduction = static_cast<uint64_t>(reduction),
          .root = cuda::kNoRoot,
          .num_bytes = num_bytes};
}

// The team of one of four ranks, which share a host.
LocalTeam team_of(int rank) {
  return {messaging::Topology(std::array<uint64_t, 4>{1, 1, 1, 1}), rank};
}

TEST(FaultText, no_fault_is_ok) {
  EXPECT_TRUE(fault_in({}, team_of(0)).ok());
}

TEST(FaultText, a_timeout_names_operation_and_rank) {
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kTimeout;
  control.report.peer = 3;
  control.report.ours = descriptor(cuda::DeviceOperation::kAllReduceTwoShot, Reduction::kSum, 4096);
  const Status fault = fault_in(control, team_of(0));
  EXPECT_EQ(fault.code(), ErrorCode::kTimeout);
  EXPECT_EQ(fault.message(),
            "all_reduce (float32, 1024 elements, SUM): Timed out on the GPU. Still awaited here: rank 3.");
}

TEST(FaultText, what_was_aborted_says_what_it_was_and_for_whom_it_waited) {
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kAborted;
  control.report.peer = 1;
  control.report.ours = descriptor(cuda::DeviceOperation::kPointToPoint, Reduction::kNone, 400);
  const Status fault = fault_in(control, team_of(0));
  EXPECT_EQ(fault.code(), ErrorCode::kAborted);
  EXPECT_EQ(fault.message(), "send or receive (float32, 100 elements, tag 0) was waiting for rank 1 on the GPU");
}

TEST(FaultText, a_process_that_has_ended_is_said_to_have) {
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kGone;
  control.report.peer = 2;
  control.report.ours = descriptor(cuda::DeviceOperation::kAllReduce, Reduction::kMax, 8);
  const Status fault = fault_in(control, team_of(0));
  EXPECT_EQ(fault.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(fault.message(),
            "all_reduce (float32, 2 elements, MAX) was waiting for rank 2 on the GPU, whose process has ended");
}

TEST(FaultText, a_mismatch_names_both_sides) {
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kMismatch;
  control.report.peer = 1;
  control.report.ours = descriptor(cuda::DeviceOperation::kAllReduce, Reduction::kMax, 8);
  control.report.theirs = descriptor(cuda::DeviceOperation::kBarrier, Reduction::kNone, 0);
  const Status fault = fault_in(control, team_of(2));
  EXPECT_EQ(fault.code(), ErrorCode::kMismatch);
  EXPECT_EQ(fault.message(),
            "mismatched operations: rank 1 called barrier, rank 2 called all_reduce (float32, 2 elements, MAX)");
}

TEST(FaultText, products_are_told_apart_by_what_they_move_and_share) {
  const auto announced = [](uint64_t num_bytes, int64_t rows) {
    return BarrierDescriptor::of(num_bytes, std::array<int64_t, 2>{rows, 100}).bits();
  };
  const auto digest = [](uint64_t bits) { return std::to_string(BarrierDescriptor::from_bits(bits).digest); };
  const uint64_t mine = announced(uint64_t{32} << 20, 40), others = announced(uint64_t{32} << 20, 60);
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kMismatch;
  control.report.peer = 1;
  control.report.ours = descriptor(cuda::DeviceOperation::kAllGatherMatmul, Reduction::kNone, mine);
  control.report.theirs = descriptor(cuda::DeviceOperation::kMatmulReduceScatter, Reduction::kNone, others);
  EXPECT_NE(digest(mine), digest(others));
  EXPECT_EQ(fault_in(control, team_of(0)).message(),
            "mismatched operations: rank 1 called matmul_reduce_scatter (float32, 32 MiB in all, digest of sizes " +
                digest(others) + "), rank 0 called all_gather_matmul (float32, 32 MiB in all, digest of sizes " +
                digest(mine) + ")");
}

TEST(FaultText, messages_are_told_apart_by_their_tags) {
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kMismatch;
  control.report.peer = 1;
  control.report.ours = descriptor(cuda::DeviceOperation::kPointToPoint, Reduction::kNone, 8);
  control.report.theirs = control.report.ours;
  control.report.our_tag = 5;
  control.report.their_tag = 6;
  const std::string text = fault_in(control, team_of(0)).message();
  EXPECT_NE(text.find("tag 5"), std::string::npos) << text;
  EXPECT_NE(text.find("tag 6"), std::string::npos) << text;
}

// Rank 3 is the second one on its host, and so are its peers' numbers in its reports.
TEST(FaultText, ranks_are_named_as_in_the_group) {
  const LocalTeam team(messaging::Topology(std::array<uint64_t, 6>{1, 2, 1, 2, 1, 2}), 3);
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kMismatch;
  control.report.peer = 2;
  control.report.ours = descriptor(cuda::DeviceOperation::kBroadcast, Reduction::kNone, 8);
  control.report.ours.root = 0;
  control.report.theirs = control.report.ours;
  control.report.theirs.root = 9;
  EXPECT_EQ(fault_in(control, team).message(),
            "mismatched operations: rank 5 called broadcast (float32, 2 elements, root 9), rank 3 called broadcast "
            "(float32, 2 elements, root 1)");
  control.report.code = cuda::FaultCode::kTimeout;
  EXPECT_EQ(fault_in(control, team).message(),
            "broadcast (float32, 2 elements, root 1): Timed out on the GPU. Still awaited here: rank 5.");
}

// Kernels do not number the ranks of other hosts.
TEST(FaultText, a_rank_of_another_host_is_named_by_the_caller) {
  const LocalTeam team(messaging::Topology(std::array<uint64_t, 6>{1, 2, 1, 2, 1, 2}), 3);
  cuda::TeamControl control{};
  control.report.code = cuda::FaultCode::kTimeout;
  control.report.ours = descriptor(cuda::DeviceOperation::kPreparedTransfer, Reduction::kNone, 8);
  EXPECT_EQ(fault_in(control, team, 4).message(),
            "prepared transfer (float32, 2 elements, tag 0): Timed out on the GPU. Still awaited here: rank 4.");
}

}  // namespace
}  // namespace axon::gpu_comm
