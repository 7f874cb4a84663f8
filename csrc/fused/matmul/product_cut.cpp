#include "fused/matmul/product_cut.hpp"

#include "fused/matmul/tile_choice.hpp"

namespace axon::matmul {

static constexpr int64_t kFewestRows = 2048;
static constexpr int64_t kFewestElements = int64_t{1} << 24;  // of a piece of the output: four waves of tiles

ProductCut::ProductCut(int64_t num_rows, int64_t depth, int64_t num_columns) noexcept
    : num_rows_(num_rows), num_tiles_((num_rows + kRowsOfTile - 1) / kRowsOfTile) {
  if (depth <= kLongestShortSum) return;
  num_pieces_ = std::max<int64_t>(1, num_rows / std::max(kFewestRows, kFewestElements / num_columns));
}

}  // namespace axon::matmul
