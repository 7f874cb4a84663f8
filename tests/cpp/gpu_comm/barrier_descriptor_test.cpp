#include "gpu_comm/barrier_descriptor.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "cuda/device_types.hpp"

namespace axon::gpu_comm {
namespace {

TEST(BarrierDescriptor, fits_a_descriptor) {
  const BarrierDescriptor announced = BarrierDescriptor::of(uint64_t{1} << 40, std::array<int64_t, 2>{1, 2});
  cuda::DeviceDescriptor descriptor{};
  descriptor.num_bytes = announced.bits();
  const BarrierDescriptor read = BarrierDescriptor::from_bits(descriptor.num_bytes);
  EXPECT_EQ(read.num_mib, uint64_t{1} << 20);
  EXPECT_EQ(read.digest, announced.digest);
}

TEST(BarrierDescriptor, ranks_that_share_all_have_the_same_descriptor) {
  const std::array<int64_t, 3> shared{0, 8192, 16384};
  EXPECT_EQ(BarrierDescriptor::of(1 << 24, shared).bits(), BarrierDescriptor::of(1 << 24, shared).bits());
}

TEST(BarrierDescriptor, another_division_of_the_same_whole_differs) {
  std::set<uint64_t> announced;
  for (int64_t first = 0; first < 64; ++first) {
    announced.insert(BarrierDescriptor::of(1 << 24, std::array<int64_t, 3>{0, first, 8192}).bits());
  }
  EXPECT_EQ(announced.size(), 64U);
}

TEST(BarrierDescriptor, bytes_of_less_than_a_mebibyte_differ) {
  EXPECT_NE(BarrierDescriptor::of(1 << 24, {}).bits(), BarrierDescriptor::of((1 << 24) + 2, {}).bits());
}

}  // namespace
}  // namespace axon::gpu_comm
