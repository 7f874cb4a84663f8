// Measures how fast one core encodes and decodes, and how fast it finds out that data does not get shorter. Prints one
// JSON line per instruction set, format and kind of data, in GB/s of data that is not encoded.
//
//   codec_speed [num_bytes]       default: 1 MiB, a stripe of a rail
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "codec/kernels.hpp"

namespace axon::codec {
namespace {

using Bytes = std::vector<std::byte>;

// This thread's CPU time, which stops while other threads have its core.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the median of many rounds. In the best round, a virtual machine's clock may have lost time.
template <typename Function>
double gigabytes_per_second(size_t num_bytes, Function function) {
  std::vector<double> rounds;
  for (const double start = now(); rounds.size() < 5 || now() - start < 0.2;) {
    const double round_start = now();
    function();
    rounds.push_back(now() - round_start);
  }
  const auto median = rounds.begin() + static_cast<ptrdiff_t>(rounds.size() / 2);
  std::ranges::nth_element(rounds, median);
  return 1e-9 * static_cast<double>(num_bytes) / *median;
}

Bytes normal_numbers(Format format, size_t num_bytes) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  const size_t width = frame_bytes(format) / kFrameElements;
  Bytes bytes(num_bytes);
  for (size_t i = 0; i + width <= num_bytes; i += width) {
    const float value = normal(random);
    std::memcpy(bytes.data() + i, reinterpret_cast<const std::byte*>(&value) + sizeof value - width, width);
  }
  return bytes;
}

Bytes random_bits(size_t num_bytes) {
  std::mt19937_64 random(1);
  Bytes bytes(num_bytes);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

void measure(const KernelTable& kernels, Format format, const char* kind, const Bytes& data) {
  Bytes frames(most_encoded_bytes(format, data.size()));
  Bytes output(data.size());
  const double encoding =
      gigabytes_per_second(data.size(), [&] { frames.resize(encode(kernels, format, data, frames.data())); });
  const double decoding = gigabytes_per_second(data.size(), [&] { (void)decode(kernels, format, frames, output); });
  const double judging = gigabytes_per_second(data.size(), [&] { (void)is_compressible(kernels, format, data); });
  const double ratio = static_cast<double>(frames.size()) / static_cast<double>(data.size());
  std::printf("{\"kernels\": \"%s\", \"dtype\": \"%s\", \"data\": \"%s\", \"num_bytes\": %zu, \"ratio\": %.4f, ",
              kernels.name, format == Format::kBFloat16 ? "bfloat16" : "float32", kind, data.size(), ratio);
  std::printf("\"encode\": %.2f, \"decode\": %.2f, \"judge\": %.2f}\n", encoding, decoding, judging);
  std::fflush(stdout);
}

}  // namespace
}  // namespace axon::codec

int main(int argc, char** argv) {
  using namespace axon::codec;
  const size_t num_bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 20;
  for (const KernelTable* const kernels : usable_tables()) {
    for (const Format format : {Format::kBFloat16, Format::kFloat32}) {
      measure(*kernels, format, "normal numbers", normal_numbers(format, num_bytes));
      measure(*kernels, format, "random bits", random_bits(num_bytes));
    }
  }
}
