#include "collectives/choices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "collectives/selector.hpp"

namespace axon::collectives {
namespace {

using transport::OperationKind;

constexpr size_t kKiB = 1024;

std::vector<ChoiceRange> ranges_of(OperationKind kind, int fewest_ranks, int most_ranks, const Chooser& choose) {
  std::vector<ChoiceRange> ranges = tabulate(fewest_ranks, most_ranks, choose);
  std::erase_if(ranges, [&](const ChoiceRange& range) { return range.kind != kind; });
  return ranges;
}

std::string text_of(const std::vector<ChoiceRange>& ranges) {
  std::string text;
  for (const ChoiceRange& range : ranges) {
    text += std::to_string(range.fewest_ranks) + "-";
    text += range.most_ranks == kAnyRanks ? "any " : std::to_string(range.most_ranks) + " ";
    text += std::to_string(range.fewest_bytes) + "-";
    text += range.most_bytes == kAnyBytes ? "any " : std::to_string(range.most_bytes) + " ";
    text += std::string(range.choice.algorithm) + "\n";
  }
  return text;
}

Chooser by_table(int num_hosts) {
  return [num_hosts](OperationKind kind, int num_ranks, size_t num_bytes) {
    if (kind == OperationKind::kPointToPoint) return Choice{};
    return Choice{.algorithm = select(kind, {num_ranks, std::min(num_hosts, num_ranks)}, num_bytes, {}).name,
                  .kernel = {}};
  };
}

TEST(ChoicesTest, ranges_follow_the_table) {
  EXPECT_EQ(text_of(ranges_of(OperationKind::kAllReduce, 2, kAnyRanks, by_table(1))),
            "2-2 1-65536 one_shot\n"
            "2-2 65537-any two_shot\n"
            "3-4 1-8192 one_shot\n"
            "3-4 8193-16384 recursive_doubling\n"
            "3-4 16385-any two_shot\n"
            "5-8 1-2048 one_shot\n"
            "5-8 2049-16384 recursive_doubling\n"
            "5-8 16385-any two_shot\n"
            "9-32 1-16384 recursive_doubling\n"
            "9-32 16385-any two_shot\n"
            "33-any 1-16384 recursive_doubling\n"
            "33-any 16385-any ring\n");
}

TEST(ChoicesTest, one_number_of_ranks_is_tabulated_alone) {
  EXPECT_EQ(text_of(ranges_of(OperationKind::kBroadcast, 8, 8, by_table(1))), "8-8 1-any binomial\n");
  EXPECT_EQ(text_of(ranges_of(OperationKind::kBroadcast, 64, 64, by_table(kAnyRanks))),
            "64-64 1-65536 binomial\n64-64 65537-any scatter_ring\n");
}

TEST(ChoicesTest, a_change_between_powers_of_two_is_found) {
  const Chooser choose = [](OperationKind, int num_ranks, size_t num_bytes) {
    return Choice{.algorithm = num_bytes <= 1000 * static_cast<size_t>(num_ranks) ? "small" : "large", .kernel = {}};
  };
  EXPECT_EQ(text_of(ranges_of(OperationKind::kReduce, 2, 3, choose)),
            "2-2 1-2000 small\n2-2 2001-any large\n3-3 1-3000 small\n3-3 3001-any large\n");
}

TEST(ChoicesTest, a_kernel_alone_makes_a_range) {
  const Chooser choose = [](OperationKind, int, size_t num_bytes) {
    return Choice{.algorithm = "ring", .kernel = num_bytes <= kKiB ? "ll" : "ll128"};
  };
  const std::vector<ChoiceRange> ranges = ranges_of(OperationKind::kAllGather, 2, kAnyRanks, choose);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].choice.kernel, "ll");
  EXPECT_EQ(ranges[0].most_bytes, kKiB);
  EXPECT_EQ(ranges[1].fewest_bytes, kKiB + 1);
}

TEST(ChoicesTest, every_operation_is_listed) {
  std::set<OperationKind> kinds;
  for (const ChoiceRange& range : tabulate(2, 2, by_table(1))) kinds.insert(range.kind);
  EXPECT_EQ(kinds.size(), static_cast<size_t>(OperationKind::kPointToPoint));
}

}  // namespace
}  // namespace axon::collectives
