// Measures how fast one core reduces two operands, for every type and reduction, next to STREAM's copy and addition
// (McCalpin, 1995). Prints one JSON line per type, size and instruction set, in GB/s of the bytes that must be read and
// written. benchmarks/arithmetic.py makes a table of the lines.
//
//   arithmetic_bandwidth [num_bytes of each operand …]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "collectives/arithmetic/arithmetic.hpp"
#include "collectives/arithmetic/kernels.hpp"

namespace axon {
namespace {

// This thread's CPU time, which stops while other threads have its core.
std::chrono::nanoseconds now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

constexpr int kNumRanks = 3;  // for AVG: not a power of two, because dividing by one is fast

// Returns the median of many short rounds. In the best round, a virtual machine's clock may have lost time.
template <typename Function>
double median_seconds(size_t num_bytes, Function function) {
  const size_t num_calls = std::max<size_t>(1, (size_t{1} << 20) / num_bytes);
  const auto start = now();
  std::vector<double> rounds;
  while (rounds.size() < 5 || now() - start < std::chrono::milliseconds(60)) {
    const auto round_start = now();
    for (size_t call = 0; call < num_calls; ++call) function();
    rounds.push_back(std::chrono::duration<double>(now() - round_start).count());
  }
  const auto median = rounds.begin() + static_cast<ptrdiff_t>(rounds.size() / 2);
  std::ranges::nth_element(rounds, median);
  return *median / static_cast<double>(num_calls);
}

// The bytes are normal numbers of about one in every floating-point type: other values would measure the processor's
// exceptions.
struct Memory {
  explicit Memory(size_t num_bytes) : output(num_bytes), left(num_bytes, std::byte{0x3f}), right(left) {}
  std::vector<std::byte> output, left, right;
};

const double* doubles(const std::vector<std::byte>& bytes) {
  return reinterpret_cast<const double*>(bytes.data());
}

// As in STREAM. The compiler replaces the copy by memcpy, which bypasses the caches for large sizes.
__attribute__((target_clones("avx512f", "avx2", "default"))) void copy(double* c, const double* a, size_t n) {
  for (size_t i = 0; i < n; ++i) c[i] = a[i];
}
__attribute__((target_clones("avx512f", "avx2", "default"))) void add(double* c, const double* a, const double* b,
                                                                      size_t n) {
  for (size_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

struct Stream {
  double copy;
  double add;
};

Stream measure_stream(Memory& memory) {
  const size_t num_bytes = memory.output.size(), n = num_bytes / sizeof(double);
  auto* const output = reinterpret_cast<double*>(memory.output.data());
  const double copying = median_seconds(num_bytes, [&] { copy(output, doubles(memory.left), n); });
  const double adding = median_seconds(num_bytes, [&] { add(output, doubles(memory.left), doubles(memory.right), n); });
  const double num_gigabytes = static_cast<double>(num_bytes) * 1e-9;
  return {2 * num_gigabytes / copying, 3 * num_gigabytes / adding};
}

void measure(const arithmetic::KernelTable& table, DataType dtype, Memory& memory, const Stream& stream) {
  const size_t num_bytes = memory.output.size();
  const ConstBuffer operands[]{{memory.left.data(), num_bytes}, {memory.right.data(), num_bytes}};
  const char* separator = "";
  for (int reduction = 0; reduction < 256; ++reduction) {
    const collectives::ReductionPlan plan{dtype, static_cast<Reduction>(reduction), kNumRanks, 0.5};
    if (!check(plan).ok()) continue;
    if (*separator == '\0') {
      std::printf("{\"kernels\": \"%s\", \"dtype\": \"%s\", \"num_bytes\": %zu, \"copy\": %.2f, \"add\": %.2f, ",
                  table.name, name_of(dtype), num_bytes, stream.copy, stream.add);
      std::printf("\"reductions\": {");
    }
    const auto kernels = arithmetic::kernels_of(table, plan);
    const double seconds = median_seconds(
        num_bytes, [&] { arithmetic::combine(kernels, memory.output.data(), operands, num_bytes / size_of(dtype)); });
    std::printf("%s\"%s\": %.2f", separator, name_of(plan.reduction), 3e-9 * static_cast<double>(num_bytes) / seconds);
    separator = ", ";
  }
  if (*separator != '\0') std::printf("}}\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace axon

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10) / 64 * 64);
  if (sizes.empty()) sizes = {size_t{256} << 10, (size_t{64} << 20) / 3 / 64 * 64};
  for (const size_t num_bytes : sizes) {
    axon::Memory memory(num_bytes);
    for (const auto* table : axon::arithmetic::usable_tables()) {
      for (size_t dtype = 0; dtype < axon::arithmetic::kNumDataTypes; ++dtype) {
        const axon::Stream stream = axon::measure_stream(memory);
        axon::measure(*table, static_cast<axon::DataType>(dtype), memory, stream);
      }
    }
  }
}
