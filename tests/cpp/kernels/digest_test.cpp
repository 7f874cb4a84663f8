// Tests that a GPU's digest of its memory is the CPU's of the same bytes.
#include "kernels/digest.hpp"

#include <numeric>
#include <optional>

#include "base/digest.hpp"
#include "cuda/memory.hpp"
#include "kernels/device_buffer.hpp"

namespace axon::testing {
namespace {

class DeviceDigest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
    guard_.emplace(0);
    stream_.emplace(require(cuda::Stream::create()));
    sums_.emplace(require(cuda::PinnedMemory::allocate(kernels::kDigestBlocks * sizeof(uint64_t))));
  }

  uint64_t digest(const std::vector<kernels::DigestPart>& parts, uint64_t first_part) {
    auto* const sums = reinterpret_cast<uint64_t*>(sums_->data());
    require(kernels::digest(parts, first_part, sums, *stream_));
    require(cuda::StreamView(*stream_).synchronize());
    return std::accumulate(sums, sums + kernels::kDigestBlocks, uint64_t{0});
  }

  std::optional<cuda::DeviceGuard> guard_;
  std::optional<cuda::Stream> stream_;
  std::optional<cuda::PinnedMemory> sums_;
};

TEST_F(DeviceDigest, is_the_digest_of_the_cpu) {
  std::mt19937 random(5);
  for (const size_t num_bytes : {0, 1, 7, 8, 9, 15, 16, 17, 31, 4096, 1'000'003, 20 << 20}) {
    for (const size_t misalignment : {0, 1, 2, 4, 8}) {
      const Bytes bytes = random_bytes(num_bytes, random);
      const DeviceBuffer buffer(num_bytes, misalignment);
      buffer.upload(bytes);
      EXPECT_EQ(digest({{buffer.data(), num_bytes}}, 3), digest_of(bytes.data(), num_bytes, 3 * kWordsOfAPart))
          << num_bytes << " bytes, misaligned by " << misalignment;
    }
  }
}

TEST_F(DeviceDigest, counts_each_part_at_its_place) {
  std::mt19937 random(6);
  std::vector<kernels::DigestPart> parts;
  std::vector<DeviceBuffer> buffers;
  uint64_t expected = 0;
  for (size_t i = 0; i < kernels::kMostDigestParts; ++i) {
    const Bytes bytes = random_bytes(100 * i, random);
    buffers.emplace_back(bytes.size(), i % 5).upload(bytes);
    parts.push_back({buffers.back().data(), bytes.size()});
    expected += digest_of(bytes.data(), bytes.size(), i * kWordsOfAPart);
  }
  EXPECT_EQ(digest(parts, 0), expected);
  std::swap(parts.front(), parts.back());
  EXPECT_NE(digest(parts, 0), expected);
}

}  // namespace
}  // namespace axon::testing
