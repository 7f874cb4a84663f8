#include "collectives/selector.hpp"

#include <algorithm>
#include <string>

#include "base/config.hpp"
#include "collectives/choices.hpp"

namespace axon::collectives {

const AlgorithmRow& select(transport::OperationKind kind, GroupShape group, size_t num_bytes,
                           const AlgorithmOverrides& overrides) noexcept {
  const AlgorithmRow* chosen = overrides.of(kind);
  if (chosen == nullptr) {
    const auto is_for_the_host = [](const TuningRow& row) { return row.algorithm != nullptr; };
    chosen = find_row(kind, group, num_bytes, is_for_the_host)->algorithm;
  }
  const uint8_t substitute = overrides.is_reproducible() ? chosen->rank_order_id
                             : overrides.is_exact()      ? chosen->exact_id
                                                         : uint8_t{0};
  return substitute != 0 ? *find_algorithm(kind, substitute) : *chosen;
}

static void append_word(std::string& list, std::string_view word) {
  if (!list.empty()) list += ", ";
  list += word;
}

static std::string names_of_algorithms(transport::OperationKind kind) {
  std::string names;
  for (const AlgorithmRow& row : kAlgorithms) {
    if (row.kind == kind) append_word(names, row.name);
  }
  return names;
}

static std::string names_of_kernels(transport::OperationKind kind) {
  std::string names;
  for (const KernelRow& row : kKernels) {
    if (row.kind == kind) append_word(names, name_of(row.kernel));
  }
  return names;
}

static std::string names_of_operations() {
  std::string names;
  for (const transport::OperationKind kind : kOperations) append_word(names, name_of(kind));
  return names;
}

static std::string_view trimmed(std::string_view text) noexcept {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

static Status unknown_choice(transport::OperationKind kind, std::string_view name) {
  const std::string algorithms = names_of_algorithms(kind);
  return {ErrorCode::kInvalidArgument, "unknown algorithm '" + std::string(name) + "' for " + name_of(kind) +
                                           "; allowed are " + (algorithms.empty() ? "" : algorithms + "; ") +
                                           names_of_kernels(kind) + " (for CUDA tensors)"};
}

Status AlgorithmOverrides::add(std::string_view choice) {
  const size_t equals = choice.find('=');
  if (equals == std::string_view::npos) {
    return {ErrorCode::kInvalidArgument,
            "'" + std::string(choice) + "' is not of the form operation=algorithm or operation=kernel"};
  }
  const std::string_view operation = trimmed(choice.substr(0, equals));
  const std::string_view name = trimmed(choice.substr(equals + 1));
  const auto* const known = std::ranges::find_if(kOperations, [&](auto kind) { return name_of(kind) == operation; });
  if (known == std::end(kOperations)) {
    return {ErrorCode::kInvalidArgument,
            "unknown operation '" + std::string(operation) + "'; allowed are " + names_of_operations()};
  }
  const transport::OperationKind kind = *known;
  if (const AlgorithmRow* row = find_algorithm(kind, name)) {
    by_kind_[static_cast<size_t>(kind)] = row;
    return Status();
  }
  const Kernel kernel = find_kernel(kind, name);
  if (kernel == Kernel::kNone) return unknown_choice(kind, name);
  kernels_[static_cast<size_t>(kind)] = kernel;
  return Status();
}

Result<AlgorithmOverrides> AlgorithmOverrides::of_environment() {
  Result<AlgorithmOverrides> overrides = parse(config::text("AXON_ALGO"));
  if (!overrides.ok()) return overrides;
  overrides.value().set_exact(config::text("AXON_EXACT") == "1");
  overrides.value().set_reproducible(config::text("AXON_REPRODUCIBLE") == "1");
  return overrides;
}

Result<AlgorithmOverrides> AlgorithmOverrides::parse(std::string_view text) {
  AlgorithmOverrides overrides;
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    const std::string_view choice = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (choice.empty()) continue;
    AXON_TRY(overrides.add(choice));
  }
  return overrides;
}

}  // namespace axon::collectives
