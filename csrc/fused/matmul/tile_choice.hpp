// Chooses the fastest of the kernels that cuBLASLt proposes for a large product on a GPU limited by power.
//
// An H200 draws its maximum power within milliseconds of products, and then runs as fast as that allows. The kernels
// that cuBLASLt proposes first are then 1 to 3 % slower than those of other tiles. The ranking uses the cost of a tile
// under that limit, and the part of the last wave that is idle (benchmarks/cuda/tiles.py,
// benchmarks/results/tiles_2xh200.jsonl). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace axon::matmul {

// Sums of up to this number of products are short; small tiles are best for them.
inline constexpr int64_t kLongestShortSum = 4096;

struct TiledKernel {
  int32_t tile = 0;  // cublasLtMatmulTile_t
  float num_waves = 0;
};

// Returns the index of the fastest of one or more kernels, the first one of equals. Each element is a sum of `depth`
// products.
size_t choose_kernel(std::span<const TiledKernel> kernels, int64_t depth) noexcept;

}  // namespace axon::matmul
