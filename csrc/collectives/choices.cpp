#include "collectives/choices.hpp"

#include <algorithm>

namespace axon::collectives {

// The choice changes at most once between two powers of two, and not above the largest one.
static constexpr size_t kLargestStep = size_t{1} << 40;

using ChooseBySize = std::function<Choice(size_t num_bytes)>;

// Returns the largest size up to `end` with the choice of `begin`.
static size_t last_like(size_t begin, size_t end, const ChooseBySize& choose) {
  const Choice choice = choose(begin);
  while (begin < end) {
    const size_t middle = end - (end - begin) / 2;
    if (choose(middle) == choice) {
      begin = middle;
    } else {
      end = middle - 1;
    }
  }
  return begin;
}

// Appends a range, or extends the last one if the choice is the same.
static void append(std::vector<ChoiceRange>& ranges, const ChoiceRange& range) {
  if (!ranges.empty() && ranges.back().choice == range.choice) {
    ranges.back().most_bytes = range.most_bytes;
  } else {
    ranges.push_back(range);
  }
}

static std::vector<ChoiceRange> tabulate_by_size(transport::OperationKind kind, int num_ranks, const Chooser& choose) {
  const auto choose_by_size = [&](size_t num_bytes) { return choose(kind, num_ranks, num_bytes); };
  std::vector<ChoiceRange> ranges;
  size_t begin = 1;
  for (size_t step = 1; step <= kLargestStep; step *= 2) {
    while (begin <= step) {
      const size_t end = last_like(begin, step, choose_by_size);
      append(ranges, {.kind = kind,
                      .fewest_ranks = num_ranks,
                      .most_ranks = num_ranks,
                      .fewest_bytes = begin,
                      .most_bytes = end,
                      .choice = choose_by_size(begin)});
      begin = end + 1;
    }
  }
  ranges.back().most_bytes = kAnyBytes;
  return ranges;
}

static bool are_alike(const std::vector<ChoiceRange>& left, const std::vector<ChoiceRange>& right) {
  return std::ranges::equal(left, right, [](const ChoiceRange& a, const ChoiceRange& b) {
    return a.choice == b.choice && a.most_bytes == b.most_bytes;
  });
}

static std::vector<ChoiceRange> tabulate_operation(transport::OperationKind kind, int fewest_ranks, int most_ranks,
                                                   const Chooser& choose) {
  const int last = std::max(fewest_ranks, std::min(most_ranks, kManyRanks));
  std::vector<ChoiceRange> table, latest;  // `latest` follows the table
  for (int num_ranks = fewest_ranks; num_ranks <= last; ++num_ranks) {
    std::vector<ChoiceRange> ranges = tabulate_by_size(kind, num_ranks, choose);
    if (!are_alike(latest, ranges)) {
      table.insert(table.end(), latest.begin(), latest.end());
      latest = std::move(ranges);
    }
    for (ChoiceRange& range : latest) range.most_ranks = num_ranks == last ? most_ranks : num_ranks;
  }
  table.insert(table.end(), latest.begin(), latest.end());
  return table;
}

std::vector<ChoiceRange> tabulate(int fewest_ranks, int most_ranks, const Chooser& choose) {
  std::vector<ChoiceRange> table;
  for (const transport::OperationKind kind : kOperations) {
    const std::vector<ChoiceRange> ranges = tabulate_operation(kind, fewest_ranks, most_ranks, choose);
    table.insert(table.end(), ranges.begin(), ranges.end());
  }
  return table;
}

}  // namespace axon::collectives
