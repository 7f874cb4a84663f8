#include "cuda/tile_choice.hpp"

#include <gtest/gtest.h>

namespace axon {
namespace {

constexpr int32_t k192x192 = 209, k256x128 = 24, k176x128 = 201, kNew = 9999;

TEST(TileChoice, the_tile_that_needs_less_power) {
  const TiledKernel kernels[] = {{k192x192, 55.7F}, {k256x128, 62.1F}, {k176x128, 91.2F}};
  EXPECT_EQ(choose_kernel(kernels), 2);
}

TEST(TileChoice, not_one_whose_last_wave_is_almost_idle) {
  const TiledKernel kernels[] = {{k192x192, 3.9F}, {k256x128, 3.1F}};
  EXPECT_EQ(choose_kernel(kernels), 0);
}

TEST(TileChoice, the_first_of_those_that_nothing_is_known_of) {
  const TiledKernel kernels[] = {{kNew, 8.0F}, {kNew + 1, 16.0F}};
  EXPECT_EQ(choose_kernel(kernels), 0);
  const TiledKernel without_waves[] = {{kNew, 0}, {kNew + 1, 0}};
  EXPECT_EQ(choose_kernel(without_waves), 0);
}

}  // namespace
}  // namespace axon
