#include "fused/matmul/tile_choice.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace axon::matmul {

namespace {

// Costs for short and for long sums. A short sum's tile is written back before the next is in flight; a small tile
// hides that. A long sum's cost is what it reads, and a large tile reads less.
struct TileCost {
  int32_t tile;
  double of_short, of_long;
};

constexpr double kUnknownCost = 1.03;
constexpr TileCost kCosts[] = {
    {20, 0.995, 1.011},   // 128x128
    {22, 1.409, 1.429},   // 64x512
    {23, 1.008, 0.999},   // 128x256
    {24, 1.000, 1.000},   // 256x128
    {25, 1.491, 1.458},   // 512x64
    {29, 0.992, 1.008},   // 128x160
    {31, 1.039, 1.036},   // 192x128
    {32, 1.043, 1.040},   // 128x192
    {165, 1.007, 1.027},  // 184x128
    {184, 0.982, 1.003},  // 144x128
    {197, 0.988, 0.999},  // 168x128
    {201, 0.990, 1.005},  // 176x128
    {209, 1.044, 1.031},  // 192x192
    {248, 1.036, 1.026},  // 320x128
    {495, 1.027, 1.022},  // 256x96
};

// Minimal time of a partial wave, as a share of a full one: idle multiprocessors leave their power to the others.
constexpr double kLeastOfWave = 0.8;

double cost_of(int32_t tile, int64_t depth) noexcept {
  const auto* const known = std::ranges::find(kCosts, tile, &TileCost::tile);
  if (known == std::end(kCosts)) return kUnknownCost;
  return depth <= kLongestShortSum ? known->of_short : known->of_long;
}

// Predicts the time of a product by this kernel, up to a common factor.
double predict(const TiledKernel& kernel, int64_t depth) noexcept {
  const double cost = cost_of(kernel.tile, depth);
  if (kernel.num_waves <= 0) return cost;
  return cost * (1 - kLeastOfWave + kLeastOfWave * std::ceil(kernel.num_waves) / kernel.num_waves);
}

}  // namespace

size_t choose_kernel(std::span<const TiledKernel> kernels, int64_t depth) noexcept {
  const auto best =
      std::ranges::min_element(kernels, {}, [&](const TiledKernel& each) { return predict(each, depth); });
  return static_cast<size_t>(best - kernels.begin());
}

}  // namespace axon::matmul
