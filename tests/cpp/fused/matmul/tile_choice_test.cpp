#include "fused/matmul/tile_choice.hpp"

#include <gtest/gtest.h>

namespace axon::matmul {
namespace {

constexpr int32_t k192x192 = 209, k256x128 = 24, k168x128 = 197, k144x128 = 184, kNew = 9999;
constexpr int64_t kLongestShort = 4096, kLong = 16384;

TEST(TileChoice, small_tiles_for_short_sums_and_large_ones_for_long) {
  const TiledKernel kernels[] = {{k192x192, 54.F}, {k256x128, 62.F}, {k168x128, 95.F}};
  EXPECT_EQ(choose_kernel(kernels, kLongestShort), 2);
  const TiledKernel large[] = {{k192x192, 54.F}, {k256x128, 62.F}};
  EXPECT_EQ(choose_kernel(large, kLong), 1);
  const TiledKernel small_first[] = {{k144x128, 95.F}, {k256x128, 62.F}};
  EXPECT_EQ(choose_kernel(small_first, kLongestShort), 0);
  EXPECT_EQ(choose_kernel(small_first, kLongestShort + 1), 1);
}

TEST(TileChoice, not_one_whose_last_wave_is_almost_idle) {
  const TiledKernel kernels[] = {{k192x192, 3.9F}, {k256x128, 3.1F}};
  EXPECT_EQ(choose_kernel(kernels, kLong), 0);
}

TEST(TileChoice, the_first_of_those_that_nothing_is_known_of) {
  const TiledKernel kernels[] = {{kNew, 8.0F}, {kNew + 1, 16.0F}};
  EXPECT_EQ(choose_kernel(kernels, kLong), 0);
  const TiledKernel without_waves[] = {{kNew, 0}, {kNew + 1, 0}};
  EXPECT_EQ(choose_kernel(without_waves, kLong), 0);
}

}  // namespace
}  // namespace axon::matmul
