#include "fused/matmul/product_cut.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace axon::matmul {
namespace {

constexpr int64_t kLongestShort = 4096, kLong = 8192;

int64_t num_pieces(int64_t num_rows, int64_t depth, int64_t num_columns) {
  return ProductCut(num_rows, depth, num_columns).num_pieces();
}

TEST(ProductCut, short_sums_are_left_whole) {
  EXPECT_EQ(num_pieces(32768, kLongestShort, 16384), 1);
  EXPECT_EQ(num_pieces(32768, kLongestShort + 1, 16384), 16);
}

TEST(ProductCut, pieces_have_enough_rows_and_enough_elements) {
  EXPECT_EQ(num_pieces(16384, kLong, 16384), 8);
  EXPECT_EQ(num_pieces(16384, kLong, 8192), 8);
  EXPECT_EQ(num_pieces(16384, kLong, 4096), 4);
  EXPECT_EQ(num_pieces(16384, kLong, 1), 1);
  EXPECT_EQ(num_pieces(4095, kLong, 16384), 1);
}

TEST(ProductCut, pieces_follow_each_other_and_are_alike_up_to_a_tile) {
  for (const int64_t num_rows : {1, 4095, 4096, 4097, 6145, 20000, 32769, 34561}) {
    const ProductCut cut(num_rows, kLong, 16384);
    EXPECT_EQ(cut.begin(0), 0);
    EXPECT_EQ(cut.begin(cut.num_pieces()), num_rows);
    for (int64_t piece = 0; piece < cut.num_pieces(); ++piece) {
      const int64_t length = cut.begin(piece + 1) - cut.begin(piece);
      EXPECT_LT(std::abs(length - num_rows / cut.num_pieces()), 2 * 256) << num_rows << ", piece " << piece;
      EXPECT_GT(length, 0);
    }
  }
}

}  // namespace
}  // namespace axon::matmul
