// A tensor on the device; tests check that the memory around it stays unchanged.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/device_ranks.hpp"

namespace axon::testing {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(size_t num_bytes, std::mt19937& random) {
  Bytes bytes(num_bytes + 3);
  for (size_t at = 0; at < num_bytes; at += 4) {
    const uint32_t word = random();
    std::memcpy(&bytes[at], &word, 4);
  }
  bytes.resize(num_bytes);
  return bytes;
}

// Allocates on the current device, `misalignment` bytes off a multiple of 256, between two bands of poison.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t num_bytes, size_t misalignment = 0)
      : num_bytes_(num_bytes),
        begin_(kBand + misalignment),
        memory_(require(cuda::DeviceMemory::allocate(begin_ + num_bytes + kBand))) {
    require(cudaMemset(memory_.data(), kPoison, begin_ + num_bytes_ + kBand));
    require(cudaDeviceSynchronize());
  }

  std::byte* data() const { return memory_.data() + begin_; }
  size_t num_bytes() const { return num_bytes_; }

  void upload(const Bytes& bytes, size_t offset = 0) const {
    require(cudaMemcpy(data() + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    require(cudaDeviceSynchronize());
  }

  void expect_contents(const Bytes& expected, const std::string& what) const {
    Bytes found(begin_ + num_bytes_ + kBand);
    require(cudaMemcpy(found.data(), memory_.data(), found.size(), cudaMemcpyDeviceToHost));
    const auto is_poison = [](std::byte byte) { return byte == std::byte{kPoison}; };
    EXPECT_TRUE(std::all_of(found.begin(), found.begin() + begin_, is_poison)) << what << ": wrote before";
    EXPECT_TRUE(std::all_of(found.end() - kBand, found.end(), is_poison)) << what << ": wrote past the end";
    const auto begin = found.begin() + begin_;
    const size_t at = std::mismatch(expected.begin(), expected.end(), begin).first - expected.begin();
    ASSERT_EQ(expected.size(), num_bytes_);
    EXPECT_EQ(at, expected.size()) << what << ": first wrong byte " << at << " of " << num_bytes_ << " is "
                                   << (at < num_bytes_ ? static_cast<int>(begin[at]) : -1) << ", not "
                                   << (at < num_bytes_ ? static_cast<int>(expected[at]) : -1);
  }

 private:
  static constexpr size_t kBand = 256;
  static constexpr int kPoison = 0xA5;

  size_t num_bytes_;
  size_t begin_;
  cuda::DeviceMemory memory_;
};

// Checks all messages: contents[source][target] is what a rank sends, received[target][source] is its destination.
inline void expect_received(const DeviceRanks& ranks, const std::vector<std::vector<DeviceBuffer>>& received,
                            const std::vector<std::vector<Bytes>>& contents) {
  ranks.synchronize();
  ranks.expect_no_faults();
  ranks.for_each([&](int rank) {
    for (int peer = 0; peer < ranks.size(); ++peer) {
      received[rank][peer].expect_contents(contents[peer][rank], "rank " + std::to_string(rank) + " of " +
                                                                     std::to_string(ranks.size()) + " from rank " +
                                                                     std::to_string(peer));
    }
  });
}

}  // namespace axon::testing
