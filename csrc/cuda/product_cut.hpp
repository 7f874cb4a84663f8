// Where one product over many rows is slower than several over few, one after the other, on a GPU that its power
// limits.
//
// A kernel's tiles under way at a time lie in a strip where its rows are many, and read more of both factors than those
// of a square, as one over 2048 rows has them: it draws more power, and leaves less of the memory to copies beside it.
// Measured on two H200, 32768 x 16384 x 16384 of float16: 1.3 % alone, 4 % beside a gather (docs/fused.md).
#pragma once

#include <cstdint>

namespace axon {

// At most `num_rows`, all of them where cutting does not pay: of short sums, whose pieces end too soon. A multiple of
// the tallest tile's rows otherwise.
int64_t rows_of_piece(int64_t num_rows, int64_t depth, int64_t num_columns) noexcept;

}  // namespace axon
