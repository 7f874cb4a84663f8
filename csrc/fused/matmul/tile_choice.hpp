// Which of the kernels that cuBLASLt proposes for a large product is the fastest on a GPU that its power limits.
//
// An H200 draws all that it may within milliseconds of products, and then runs as fast as that allows: the kernels that
// cuBLASLt puts first are 1 to 3 % slower than those of other tiles. What a tile costs then, and what the last wave
// leaves idle, ranks them (benchmarks/cuda/tiles.py, benchmarks/results/tiles_2xh200.jsonl).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace axon::matmul {

// Sums of so many products, and of fewer, are short: small tiles are the best for them.
inline constexpr int64_t kLongestShortSum = 4096;

struct TiledKernel {
  int32_t tile = 0;  // cublasLtMatmulTile_t
  float num_waves = 0;
};

// Of one or more: the index. The first one where two are equally fast. `depth` products are summed up an element.
size_t choose_kernel(std::span<const TiledKernel> kernels, int64_t depth) noexcept;

}  // namespace axon::matmul
