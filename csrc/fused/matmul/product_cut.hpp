// Cuts a product over many rows into several over fewer rows, one after the other, where that is faster. This is the
// case on a GPU limited by power.
//
// The presumed reason: where rows are many, the tiles that a kernel processes at a time lie in a strip. They read more
// of both factors than the tiles of a square, as in a product over 2048 rows. That takes power, and leaves less to
// copies running beside it. Measured on two H200 for 32768 x 16384 x 16384 of float16: 1.3 % alone, 4 % beside a gather
// (docs/fused.md).
#pragma once

#include <algorithm>
#include <cstdint>

namespace axon::matmul {

class ProductCut {
 public:
  // Makes one piece where cutting does not pay: pieces of short sums would end too soon.
  ProductCut(int64_t num_rows, int64_t depth, int64_t num_columns) noexcept;

  int64_t num_pieces() const noexcept { return num_pieces_; }
  // Returns the first row of a piece, or the end for the number after the last piece. Sizes of pieces differ by a tile.
  int64_t begin(int64_t piece) const noexcept {
    return std::min(num_rows_, num_tiles_ * piece / num_pieces_ * kRowsOfTile);
  }

 private:
  static constexpr int64_t kRowsOfTile = 256;  // of the tallest tile

  int64_t num_rows_;
  int64_t num_tiles_;
  int64_t num_pieces_ = 1;
};

}  // namespace axon::matmul
