#include "cuda/product_cut.hpp"

#include <gtest/gtest.h>

namespace axon {
namespace {

constexpr int64_t kLongestShort = 4096;

TEST(ProductCut, short_sums_are_left_whole) {
  EXPECT_EQ(rows_of_piece(32768, kLongestShort, 16384), 32768);
  EXPECT_EQ(rows_of_piece(32768, kLongestShort + 1, 16384), 2048);
}

TEST(ProductCut, pieces_have_enough_rows_and_enough_elements) {
  EXPECT_EQ(rows_of_piece(16384, 8192, 16384), 2048);
  EXPECT_EQ(rows_of_piece(16384, 8192, 8192), 2048);
  EXPECT_EQ(rows_of_piece(16384, 8192, 4096), 4096);
  EXPECT_EQ(rows_of_piece(16384, 8192, 1), 16384);
  EXPECT_EQ(rows_of_piece(4095, 8192, 16384), 4095);
}

TEST(ProductCut, pieces_are_alike_up_to_a_tile) {
  EXPECT_EQ(rows_of_piece(5000, 8192, 8192), 2560);
  for (const int64_t num_rows : {4096, 4097, 6143, 6145, 20000}) {
    const int64_t most = rows_of_piece(num_rows, 8192, 8192);
    const int64_t num_pieces = (num_rows + most - 1) / most;
    EXPECT_EQ(num_pieces, num_rows / 2048);
    EXPECT_GT(num_rows - (num_pieces - 1) * most, most - num_pieces * 256) << num_rows;
  }
}

}  // namespace
}  // namespace axon
