// Matrix products of rows that several ranks have, plain ones and those of float8 with scales.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

namespace axon::fused {

struct RowRange {
  int64_t begin = 0;
  int64_t num_rows = 0;

  RowRange behind(int64_t row) const noexcept { return {.begin = row + begin, .num_rows = num_rows}; }
};

// A view, without the dispatcher's detour: products in pieces make many.
at::Tensor slice_rows(const at::Tensor& matrix, RowRange range);

// Which rows of the whole are each rank's: consecutive ones, in rank order.
class RowPartition {
 public:
  RowPartition(at::IntArrayRef sizes, int rank);
  size_t num_ranks() const noexcept { return begins_.size() - 1; }
  size_t rank() const noexcept { return rank_; }
  RowRange of(size_t rank) const noexcept { return between(rank, rank + 1); }
  RowRange own() const noexcept { return of(rank_); }
  // Before the own rows, and behind them.
  std::array<RowRange, 2> others() const noexcept { return {between(0, rank_), between(rank_ + 1, num_ranks())}; }
  RowRange all() const noexcept { return between(0, num_ranks()); }
  bool has_equal_rows() const noexcept;
  int64_t most_rows() const noexcept;
  // Of each rank, then the end.
  const std::vector<int64_t>& begins() const noexcept { return begins_; }

 private:
  RowRange between(size_t first, size_t last) const noexcept {
    return {.begin = begins_[first], .num_rows = begins_[last] - begins_[first]};
  }

  std::vector<int64_t> begins_;
  size_t rank_;
};

// The left factor: rows of K elements.
struct Rows {
  at::Tensor values;  // [m, K]
  at::Tensor scales;  // float8: [m, 1], of 0-d or 1-d for all rows; else undefined

  // All ranks answer alike, also those of one row or none.
  bool has_scale_a_row() const { return scales.defined() && scales.dim() == 2; }
  Rows slice(RowRange range) const;
  Rows contiguous() const;
};

// The right factor, and what becomes of the product.
struct Weight {
  at::Tensor values;               // [K, N]
  std::optional<at::Tensor> bias;  // [N]
  at::Tensor scale;                // float8: [1, N] or one element; else undefined
  bool use_fast_accum = false;     // float8
  at::ScalarType output_type{};

  int64_t num_columns() const { return values.size(1); }
  // Not yet written, on the device of the factors.
  at::Tensor empty_output(int64_t num_rows) const;
};

// output [m, N], contiguous, becomes x · weight + bias. Enqueued on the current stream, where there is one.
void multiply(const Rows& x, const Weight& weight, at::Tensor output);
// output becomes factor · (other + x · weight), rounded once. Neither has a scale, the weight no bias.
void multiply_and_add(const Rows& x, const Weight& weight, const at::Tensor& other, double factor, at::Tensor output);

}  // namespace axon::fused
