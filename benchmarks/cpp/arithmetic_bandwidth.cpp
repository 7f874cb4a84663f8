// How fast reductions run on one core, beside a plain copy. Counts the bytes that a reduction must read and write; the
// copy's are counted likewise.
//
//   arithmetic_bandwidth [num_bytes of each operand …]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "collectives/arithmetic/arithmetic.hpp"
#include "collectives/arithmetic/kernels.hpp"

namespace axon {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  ReductionPlan plan;
  size_t num_operands;
};

const std::vector<Case> kCases{
    {"float32 SUM of 2", {DataType::kFloat32, Reduction::kSum}, 2},
    {"float32 AVG of 2", {DataType::kFloat32, Reduction::kAverage, 2}, 2},
    {"float32 SUM of 8", {DataType::kFloat32, Reduction::kSum}, 8},
    {"bfloat16 SUM of 2", {DataType::kBFloat16, Reduction::kSum}, 2},
    {"bfloat16 AVG of 2", {DataType::kBFloat16, Reduction::kAverage, 2}, 2},
    {"bfloat16 SUM of 8", {DataType::kBFloat16, Reduction::kSum}, 8},
    {"float16 SUM of 2", {DataType::kFloat16, Reduction::kSum}, 2},
    {"int8 SUM of 2", {DataType::kInt8, Reduction::kSum}, 2},
};

// The best of many short rounds: the machine may be shared, and a short round is the likelier to be left alone.
template <typename Function>
double best_seconds(size_t num_bytes, Function function) {
  const size_t num_calls = std::max<size_t>(1, (size_t{1} << 20) / num_bytes);
  const auto start = Clock::now();
  double best = 1e9;
  for (int round = 0; round < 5 || Clock::now() - start < std::chrono::milliseconds(100); ++round) {
    const auto round_start = Clock::now();
    for (size_t call = 0; call < num_calls; ++call) function();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - round_start).count());
  }
  return best / static_cast<double>(num_calls);
}

void print_row(const char* kernels, const char* name, size_t num_bytes, double moved_bytes, double seconds) {
  std::printf("%-8s %-18s %10zu B %10.2f us %8.1f GB/s\n", kernels, name, num_bytes, seconds * 1e6,
              moved_bytes / seconds / 1e9);
}

void measure(size_t num_bytes) {
  std::vector<std::vector<std::byte>> memory(9, std::vector<std::byte>(num_bytes));
  std::vector<ConstBuffer> operands;
  for (size_t i = 1; i < memory.size(); ++i) operands.push_back({memory[i].data(), num_bytes});
  const double copy = best_seconds(num_bytes, [&] {
    std::memcpy(memory[0].data(), memory[1].data(), num_bytes);
    asm volatile("" ::: "memory");
  });
  print_row("-", "copy", num_bytes, 2.0 * static_cast<double>(num_bytes), copy);
  for (const Case& row : kCases) {
    for (const arithmetic::KernelTable* table : arithmetic::usable_tables()) {
      const auto kernels = arithmetic::kernels_of(*table, row.plan);
      const double seconds = best_seconds(num_bytes, [&] {
        arithmetic::combine(kernels, memory[0].data(), std::span(operands).first(row.num_operands),
                            num_bytes / size_of(row.plan.dtype));
      });
      print_row(table->name, row.name, num_bytes, static_cast<double>((row.num_operands + 1) * num_bytes), seconds);
    }
  }
}

}  // namespace
}  // namespace axon

int main(int num_arguments, char** arguments) {
  std::vector<size_t> sizes;
  for (int i = 1; i < num_arguments; ++i) sizes.push_back(std::strtoull(arguments[i], nullptr, 10));
  if (sizes.empty()) sizes = {4096, size_t{64} << 10, size_t{1} << 20, size_t{64} << 20};
  for (const size_t num_bytes : sizes) axon::measure(num_bytes);
}
