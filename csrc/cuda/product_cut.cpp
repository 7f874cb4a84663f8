#include "cuda/product_cut.hpp"

#include <algorithm>

#include "cuda/tile_choice.hpp"

namespace axon {

static constexpr int64_t kFewestRows = 2048;
static constexpr int64_t kFewestElements = int64_t{1} << 24;  // of a piece of the output: four waves of tiles
static constexpr int64_t kRowsOfTile = 256;

int64_t rows_of_piece(int64_t num_rows, int64_t depth, int64_t num_columns) noexcept {
  if (depth <= kLongestShortSum) return num_rows;
  const int64_t num_pieces = num_rows / std::max(kFewestRows, kFewestElements / num_columns);
  if (num_pieces < 2) return num_rows;
  const int64_t num_tiles = (num_rows + num_pieces * kRowsOfTile - 1) / (num_pieces * kRowsOfTile);
  return num_tiles * kRowsOfTile;
}

}  // namespace axon
