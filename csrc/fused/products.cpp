#include "fused/products.hpp"

#include <ATen/ATen.h>
#include <ATen/ops/as_strided_native.h>

#include <algorithm>
#include <numeric>

namespace axon::fused {

RowPartition::RowPartition(at::IntArrayRef sizes, int rank)
    : begins_(sizes.size() + 1), rank_(static_cast<size_t>(rank)) {
  std::partial_sum(sizes.begin(), sizes.end(), begins_.begin() + 1);
}

bool RowPartition::has_equal_rows() const noexcept {
  return most_rows() * static_cast<int64_t>(num_ranks()) == all().num_rows;
}

int64_t RowPartition::most_rows() const noexcept {
  int64_t most = 0;
  for (size_t rank = 0; rank < num_ranks(); ++rank) most = std::max(most, of(rank).num_rows);
  return most;
}

at::Tensor slice_rows(const at::Tensor& matrix, RowRange range) {
  const std::array<int64_t, 2> sizes{range.num_rows, matrix.size(1)};
  return at::native::as_strided_tensorimpl(matrix, sizes, matrix.strides(),
                                           matrix.storage_offset() + range.begin * matrix.stride(0));
}

Rows Rows::slice(RowRange range) const {
  Rows part{.values = slice_rows(values, range), .scales = scales};
  if (has_scale_a_row()) part.scales = slice_rows(scales, range);
  return part;
}

Rows Rows::contiguous() const {
  return {.values = values.contiguous(), .scales = scales.defined() ? scales.contiguous() : scales};
}

at::Tensor Weight::empty_output(int64_t num_rows) const {
  return at::empty({num_rows, num_columns()}, values.options().dtype(output_type));
}

void multiply(const Rows& x, const Weight& weight, at::Tensor output) {
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

void multiply_and_add(const Rows& x, const Weight& weight, const at::Tensor& other, double factor, at::Tensor output) {
  if (output.numel() != 0) at::addmm_out(output, other, x.values, weight.values, factor, factor);
}

}  // namespace axon::fused
