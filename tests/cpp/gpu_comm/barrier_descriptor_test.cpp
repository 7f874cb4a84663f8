#include "gpu_comm/barrier_descriptor.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "cuda/device_types.hpp"

namespace axon {
namespace {

TEST(Announcement, fits_a_descriptor) {
  const Announcement announced = Announcement::of(uint64_t{1} << 40, std::array<int64_t, 2>{1, 2});
  DeviceDescriptor descriptor{};
  descriptor.num_bytes = announced.bits();
  const Announcement read = Announcement::from_bits(descriptor.num_bytes);
  EXPECT_EQ(read.num_mib, uint64_t{1} << 20);
  EXPECT_EQ(read.digest, announced.digest);
}

TEST(Announcement, ranks_that_share_all_announce_the_same) {
  const std::array<int64_t, 3> shared{0, 8192, 16384};
  EXPECT_EQ(Announcement::of(1 << 24, shared).bits(), Announcement::of(1 << 24, shared).bits());
}

TEST(Announcement, another_division_of_the_same_whole_differs) {
  std::set<uint64_t> announced;
  for (int64_t first = 0; first < 64; ++first) {
    announced.insert(Announcement::of(1 << 24, std::array<int64_t, 3>{0, first, 8192}).bits());
  }
  EXPECT_EQ(announced.size(), 64U);
}

TEST(Announcement, bytes_of_less_than_a_mebibyte_differ) {
  EXPECT_NE(Announcement::of(1 << 24, {}).bits(), Announcement::of((1 << 24) + 2, {}).bits());
}

}  // namespace
}  // namespace axon
