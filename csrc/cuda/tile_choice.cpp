#include "cuda/tile_choice.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace axon {

namespace {

struct TileCost {
  int32_t tile;
  double cost;
};

constexpr double kUnknownCost = 1.01;
constexpr TileCost kCosts[] = {
    {20, 1.004},   // 128x128
    {22, 1.37},    // 64x512
    {23, 0.976},   // 128x256
    {24, 0.973},   // 256x128
    {25, 1.37},    // 512x64
    {29, 0.986},   // 128x160
    {31, 1.013},   // 192x128
    {32, 1.018},   // 128x192
    {184, 0.994},  // 144x128
    {197, 0.983},  // 168x128
    {201, 0.970},  // 176x128
    {209, 1.006},  // 192x192
    {248, 0.976},  // 320x128
    {495, 1.005},  // 256x96
};

double cost_of(int32_t tile) noexcept {
  const auto* const known = std::ranges::find(kCosts, tile, &TileCost::tile);
  return known == std::end(kCosts) ? kUnknownCost : known->cost;
}

// Of the same product, by another kernel: up to a factor.
double predict(const TiledKernel& kernel) noexcept {
  if (kernel.num_waves <= 0) return cost_of(kernel.tile);
  return cost_of(kernel.tile) * std::ceil(kernel.num_waves) / kernel.num_waves;
}

}  // namespace

size_t choose_kernel(std::span<const TiledKernel> kernels) noexcept {
  const auto best = std::ranges::min_element(kernels, {}, predict);
  return static_cast<size_t>(best - kernels.begin());
}

}  // namespace axon
