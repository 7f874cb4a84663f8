#include "c10d/fused/products.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace axon {

RowPartition::RowPartition(at::IntArrayRef sizes, int rank)
    : begins_(sizes.size() + 1), rank_(static_cast<size_t>(rank)) {
  std::partial_sum(sizes.begin(), sizes.end(), begins_.begin() + 1);
}

bool RowPartition::is_even() const noexcept {
  return most_rows() * static_cast<int64_t>(num_ranks()) == all().num_rows;
}

int64_t RowPartition::most_rows() const noexcept {
  int64_t most = 0;
  for (size_t rank = 0; rank < num_ranks(); ++rank) most = std::max(most, of(rank).num_rows);
  return most;
}

Rows Rows::slice(RowRange range) const {
  Rows part{.values = values.narrow(0, range.begin, range.num_rows), .scales = scales};
  if (has_scale_a_row()) part.scales = scales.narrow(0, range.begin, range.num_rows);
  return part;
}

Rows Rows::contiguous() const {
  return {.values = values.contiguous(), .scales = scales.defined() ? scales.contiguous() : scales};
}

at::Tensor Weight::empty_output(int64_t num_rows) const {
  return at::empty({num_rows, num_columns()}, values.options().dtype(output_type));
}

int64_t rows_of_piece(int64_t num_rows, int64_t num_pieces) {
  static constexpr int64_t kRowsOfTile = 256;
  const int64_t num_tiles = (num_rows + kRowsOfTile - 1) / kRowsOfTile;
  return (num_tiles + num_pieces - 1) / num_pieces * kRowsOfTile;
}

static void multiply_at_once(const Rows& x, const Weight& weight, at::Tensor output) {
  if (output.numel() == 0) return;
  if (weight.scale.defined()) {
    at::_scaled_mm_out(output, x.values, weight.values, x.scales, weight.scale, weight.bias, /*scale_result=*/{},
                       output.scalar_type(), weight.use_fast_accum);
  } else if (weight.bias) {
    at::addmm_out(output, *weight.bias, x.values, weight.values);
  } else {
    at::mm_out(output, x.values, weight.values);
  }
}

void multiply(const Rows& x, const Weight& weight, at::Tensor output) {
  const int64_t num_rows = output.size(0), most = weight.rows_at_once;
  if (most == 0) return multiply_at_once(x, weight, output);
  for (int64_t begin = 0; begin < num_rows; begin += most) {
    const RowRange piece{.begin = begin, .num_rows = std::min(most, num_rows - begin)};
    multiply_at_once(x.slice(piece), weight, output.narrow(0, piece.begin, piece.num_rows));
  }
}

void multiply_and_add(const Rows& x, const Weight& weight, double factor, at::Tensor output) {
  if (output.numel() != 0) output.addmm_(x.values, weight.values, factor, factor);
}

}  // namespace axon
