// Where one product over many rows is slower than several over few, one after the other, on a GPU that its power
// limits.
//
// Presumably since a kernel's tiles under way at a time lie in a strip where its rows are many, and read more of both
// factors than those of a square, as one over 2048 rows has them: that takes power, and leaves less to copies beside
// it. Measured on two H200, 32768 x 16384 x 16384 of float16: 1.3 % alone, 4 % beside a gather (docs/fused.md).
#pragma once

#include <algorithm>
#include <cstdint>

namespace axon::matmul {

class ProductCut {
 public:
  // One piece where cutting does not pay: of short sums, whose pieces end too soon.
  ProductCut(int64_t num_rows, int64_t depth, int64_t num_columns) noexcept;

  int64_t num_pieces() const noexcept { return num_pieces_; }
  // Its first row; of the piece behind the last one, the end. Pieces differ by a tile.
  int64_t begin(int64_t piece) const noexcept {
    return std::min(num_rows_, num_tiles_ * piece / num_pieces_ * kRowsOfTile);
  }

 private:
  static constexpr int64_t kRowsOfTile = 256;  // the tallest one's

  int64_t num_rows_;
  int64_t num_tiles_;
  int64_t num_pieces_ = 1;
};

}  // namespace axon::matmul
