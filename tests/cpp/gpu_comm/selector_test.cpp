#include "gpu_comm/selector.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "collectives/choices.hpp"
#include "collectives/selector.hpp"
#include "kernels/team_layout.hpp"

namespace axon::gpu_comm {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

cuda::TeamLayout layout_of(int num_ranks, size_t slice_bytes) {
  Result<cuda::TeamLayout> layout = kernels::lay_out(num_ranks, slice_bytes);
  EXPECT_TRUE(layout.ok());
  return layout.value();
}

KernelQuery all_reduce(int num_ranks, size_t num_bytes) {
  return {.kind = transport::OperationKind::kAllReduce,
          .dtype = DataType::kFloat32,
          .reduction = Reduction::kSum,
          .num_ranks = num_ranks,
          .num_bytes = num_bytes};
}

KernelQuery all_gather(int num_ranks, size_t num_bytes) {
  return {.kind = transport::OperationKind::kAllGather,
          .dtype = DataType::kByte,
          .num_ranks = num_ranks,
          .num_bytes = num_bytes};
}

TEST(KernelSelector, all_reduce_goes_by_size) {
  const cuda::TeamLayout layout = layout_of(4, 15 * kMiB);
  EXPECT_EQ(select_kernel(all_reduce(4, 8), layout), Kernel::kLlOneShot);
  EXPECT_EQ(select_kernel(all_reduce(4, 128 * kKiB), layout), Kernel::kLlOneShot);
  EXPECT_EQ(select_kernel(all_reduce(4, 256 * kKiB), layout), Kernel::kLlTwoShot);
  EXPECT_EQ(select_kernel(all_reduce(4, kMiB), layout), Kernel::kLl128);
  EXPECT_EQ(select_kernel(all_reduce(4, 4 * kMiB), layout), Kernel::kZeroCopy);
  EXPECT_EQ(select_kernel(all_reduce(2, 512 * kKiB), layout), Kernel::kLlOneShot);
  EXPECT_EQ(select_kernel(all_reduce(2, 4 * kMiB), layout), Kernel::kLl128);
  EXPECT_EQ(select_kernel(all_reduce(2, 8 * kMiB), layout), Kernel::kZeroCopy);
}

TEST(KernelSelector, few_ranks_are_no_reason_for_ll128) {
  const cuda::TeamLayout layout = layout_of(2, 15 * kMiB);
  KernelQuery query = all_reduce(2, 8 * kMiB);
  query.kind = transport::OperationKind::kReduceScatter;
  EXPECT_EQ(select_kernel(query, layout), Kernel::kZeroCopy);
  query.num_bytes = 4 * kMiB;
  EXPECT_EQ(select_kernel(query, layout), Kernel::kLl128);
  query.num_ranks = 3;
  EXPECT_EQ(select_kernel(query, layout), Kernel::kZeroCopy);
  query = {
      .kind = transport::OperationKind::kAllToAll, .dtype = DataType::kByte, .num_ranks = 2, .num_bytes = 16 * kMiB};
  EXPECT_EQ(select_kernel(query, layout), Kernel::kZeroCopy);
}

TEST(KernelSelector, what_does_not_fit_into_a_small_slice_goes_by_ll128) {
  const cuda::TeamLayout layout = layout_of(16, kMiB);
  EXPECT_EQ(select_kernel(all_reduce(16, 8), layout), Kernel::kLlOneShot);
  EXPECT_EQ(select_kernel(all_reduce(16, 256 * kKiB), layout), Kernel::kLl128);
  EXPECT_EQ(select_kernel(all_gather(16, 512 * kKiB), layout), Kernel::kLl128);
}

TEST(KernelSelector, only_equal_counts_are_gathered_by_ll) {
  const cuda::TeamLayout layout = layout_of(2, 15 * kMiB);
  KernelQuery query = all_gather(2, 64 * kKiB);
  EXPECT_EQ(select_kernel(query, layout), Kernel::kLl);
  query.has_equal_counts = false;
  EXPECT_EQ(select_kernel(query, layout), Kernel::kLl128);
}

TEST(KernelSelector, only_large_messages_are_zero_copy) {
  const cuda::TeamLayout layout = layout_of(4, 15 * kMiB);
  KernelQuery query{
      .kind = transport::OperationKind::kPointToPoint, .dtype = DataType::kByte, .num_ranks = 4, .num_bytes = 8 * kMiB};
  EXPECT_EQ(select_kernel(query, layout), Kernel::kLl128);
  ++query.num_bytes;
  EXPECT_EQ(select_kernel(query, layout), Kernel::kZeroCopy);
}

TEST(KernelSelector, large_broadcasts_are_handed_on) {
  const cuda::TeamLayout layout = layout_of(4, 15 * kMiB);
  KernelQuery query{
      .kind = transport::OperationKind::kBroadcast, .dtype = DataType::kByte, .num_ranks = 4, .num_bytes = kMiB};
  EXPECT_EQ(select_kernel(query, layout), Kernel::kLl128Scattered);
  query.num_bytes = 256 * kMiB;
  EXPECT_EQ(select_kernel(query, layout), Kernel::kZeroCopy);
  query.num_bytes = 512 * kKiB;
  EXPECT_EQ(select_kernel(query, layout), Kernel::kLl128);
}

TEST(KernelSelector, nothing_is_not_sent_by_ll) {
  const cuda::TeamLayout layout = layout_of(2, 15 * kMiB);
  EXPECT_EQ(select_kernel(all_reduce(2, 0), layout), Kernel::kLl128);
  EXPECT_EQ(select_kernel(all_gather(2, 0), layout), Kernel::kLl128);
}

TEST(KernelSelector, reductions_without_a_kernel_go_through_the_host) {
  const cuda::TeamLayout layout = layout_of(2, 15 * kMiB);
  for (const size_t num_bytes : {size_t{0}, 8 * kKiB, 8 * kMiB}) {
    KernelQuery query = all_reduce(2, num_bytes);
    query.reduction = Reduction::kBitXor;  // of floats
    EXPECT_EQ(select_kernel(query, layout), Kernel::kNone) << num_bytes;
  }
}

TEST(KernelSelector, every_other_operation_has_a_kernel_at_any_size) {
  for (const int num_ranks : {2, 3, 8, 16}) {
    for (const size_t block : {kMiB, 15 * kMiB}) {
      const cuda::TeamLayout layout = layout_of(num_ranks, block);
      for (int kind = 1; kind <= static_cast<int>(transport::OperationKind::kPointToPoint); ++kind) {
        for (const size_t num_bytes : {size_t{0}, size_t{1}, kMiB, 4096 * kMiB}) {
          KernelQuery query = all_reduce(num_ranks, num_bytes);
          query.kind = static_cast<transport::OperationKind>(kind);
          EXPECT_NE(select_kernel(query, layout), Kernel::kNone) << name_of(query.kind) << ", " << num_bytes;
        }
      }
    }
  }
}

// So ranks of hosts of different sizes decide alike, even one that has no slice (DeviceGroup::serves_local).
TEST(KernelSelector, the_number_of_ranks_does_not_decide_whether_there_is_a_kernel) {
  const auto query_of = [](int dtype, int reduction, int num_ranks) {
    KernelQuery query = all_reduce(num_ranks, kMiB);
    query.dtype = static_cast<DataType>(dtype);
    query.reduction = static_cast<Reduction>(reduction);
    return query;
  };
  int num_served = 0;
  for (int dtype = 0; dtype <= static_cast<int>(DataType::kComplex128); ++dtype) {
    for (int reduction = 1; reduction <= static_cast<int>(Reduction::kPremulSum); ++reduction) {
      const bool is_served = select_kernel(query_of(dtype, reduction, 2), {}) != Kernel::kNone;
      num_served += is_served ? 1 : 0;
      for (const int num_ranks : {2, 3, 16}) {
        const Kernel kernel = select_kernel(query_of(dtype, reduction, num_ranks), layout_of(num_ranks, kMiB));
        EXPECT_EQ(kernel != Kernel::kNone, is_served) << dtype << ", " << reduction << ", " << num_ranks;
      }
    }
  }
  EXPECT_GT(num_served, 0);
}

TEST(KernelSelector, a_wanted_kernel_takes_precedence_over_the_table) {
  const cuda::TeamLayout layout = layout_of(4, 15 * kMiB);
  EXPECT_EQ(select_kernel(all_reduce(4, 8), layout, Kernel::kLl128), Kernel::kLl128);
  EXPECT_EQ(select_kernel(all_reduce(4, 8), layout, Kernel::kZeroCopy), Kernel::kZeroCopy);
  EXPECT_EQ(select_kernel(all_reduce(4, 256 * kKiB), layout, Kernel::kLlOneShot), Kernel::kLlOneShot);
  EXPECT_EQ(select_kernel(all_gather(4, 64 * kMiB), layout, Kernel::kLl128), Kernel::kLl128);
}

TEST(KernelSelector, a_wanted_kernel_without_room_leaves_the_call_to_the_table) {
  const cuda::TeamLayout layout = layout_of(4, 15 * kMiB);
  for (const size_t num_bytes : {size_t{0}, 8 * kMiB}) {
    const KernelQuery query = all_reduce(4, num_bytes);
    EXPECT_EQ(select_kernel(query, layout, Kernel::kLlOneShot), select_kernel(query, layout)) << num_bytes;
  }
  EXPECT_EQ(select_kernel(all_reduce(4, 0), layout, Kernel::kZeroCopy), Kernel::kLl128);
  KernelQuery uneven = all_gather(4, 64 * kKiB);
  uneven.has_equal_counts = false;
  EXPECT_EQ(select_kernel(uneven, layout, Kernel::kLl), Kernel::kLl128);
}

TEST(KernelSelector, a_wanted_kernel_does_not_make_a_reduction_possible) {
  KernelQuery query = all_reduce(2, 8 * kKiB);
  query.reduction = Reduction::kBitXor;  // of floats
  EXPECT_EQ(select_kernel(query, layout_of(2, 15 * kMiB), Kernel::kLl128), Kernel::kNone);
}

TEST(KernelSelector, every_kernel_in_overrides_serves_a_call_of_its_operation) {
  const cuda::TeamLayout layout = layout_of(4, 15 * kMiB);
  for (const collectives::KernelRow& row : collectives::kKernels) {
    const std::string text = std::string(name_of(row.kind)) + "=" + name_of(row.kernel);
    const Result<collectives::AlgorithmOverrides> overrides = collectives::AlgorithmOverrides::parse(text);
    ASSERT_TRUE(overrides.ok()) << text;
    const Kernel wanted = overrides.value().kernel_of(row.kind);
    EXPECT_EQ(wanted, row.kernel) << text;
    EXPECT_EQ(select_kernel(typical_query(row.kind, 4, 64 * kKiB), layout, wanted), row.kernel) << text;
  }
}

TEST(KernelSelector, typical_kernels_are_those_of_large_slices) {
  EXPECT_EQ(typical_kernel(transport::OperationKind::kAllReduce, 2, 512 * kKiB), Kernel::kLlOneShot);
  EXPECT_EQ(typical_kernel(transport::OperationKind::kAllReduce, 2, 512 * kKiB, Kernel::kZeroCopy), Kernel::kZeroCopy);
  EXPECT_EQ(typical_kernel(transport::OperationKind::kPointToPoint, 16, 8), Kernel::kLl128);
  EXPECT_EQ(typical_kernel(transport::OperationKind::kAllReduce, 17, 8), Kernel::kNone);
}

TEST(KernelSelector, choices_are_tabulated_by_ranks_and_size) {
  const collectives::Chooser choose = [](transport::OperationKind kind, int num_ranks, size_t num_bytes) {
    const Kernel kernel = typical_kernel(kind, num_ranks, num_bytes);
    return collectives::Choice{.algorithm = {}, .kernel = kernel == Kernel::kNone ? "" : name_of(kernel)};
  };
  const auto ranges = collectives::tabulate(2, collectives::kAnyRanks, choose);
  const auto first = std::ranges::find(ranges, transport::OperationKind::kAllReduce, &collectives::ChoiceRange::kind);
  EXPECT_EQ(first->choice.kernel, "ll_one_shot");
  EXPECT_EQ(first->most_ranks, 2);
  EXPECT_EQ(first->most_bytes, 512 * kKiB);
  EXPECT_EQ(ranges.back().choice.kernel, "") << "kernels do not serve groups of any size";
  EXPECT_EQ(ranges.back().fewest_ranks, 17);
}

}  // namespace
}  // namespace axon::gpu_comm
