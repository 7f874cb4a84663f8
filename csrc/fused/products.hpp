// Matrix products of rows that several ranks hold, both plain and float8 with scales.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

namespace axon::fused {

struct RowRange {
  int64_t begin = 0;
  int64_t num_rows = 0;

  RowRange shifted_by(int64_t row) const noexcept { return {.begin = row + begin, .num_rows = num_rows}; }
};

// Returns a view without a call of the dispatcher, because tiled products make many views.
at::Tensor slice_rows(const at::Tensor& matrix, RowRange range);

// The consecutive rows of each rank, in rank order.
class RowPartition {
 public:
  RowPartition(at::IntArrayRef sizes, int rank);
  size_t num_ranks() const noexcept { return begins_.size() - 1; }
  size_t rank() const noexcept { return rank_; }
  RowRange of(size_t rank) const noexcept { return between(rank, rank + 1); }
  RowRange own() const noexcept { return of(rank_); }
  // The rows before this rank's own, and those that follow.
  std::array<RowRange, 2> others() const noexcept { return {between(0, rank_), between(rank_ + 1, num_ranks())}; }
  RowRange all() const noexcept { return between(0, num_ranks()); }
  bool has_equal_rows() const noexcept;
  int64_t most_rows() const noexcept;
  // The first row of each rank, and the end.
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
  at::Tensor scales;  // float8: [m, 1], or 0-d or 1-d for all rows; else undefined

  // Returns whether each row has a scale of its own. The answer is the same on all ranks, including those with one row
  // or none.
  bool has_scale_a_row() const { return scales.defined() && scales.dim() == 2; }
  Rows slice(RowRange range) const;
  Rows contiguous() const;
};

// The right factor, and its bias and scale.
struct Weight {
  at::Tensor values;               // [K, N]
  std::optional<at::Tensor> bias;  // [N]
  at::Tensor scale;                // float8: [1, N] or one element; else undefined
  bool use_fast_accum = false;     // float8
  at::ScalarType output_type{};

  int64_t num_columns() const { return values.size(1); }
  // Returns an uninitialised output on the device of the factors.
  at::Tensor empty_output(int64_t num_rows) const;
};

// Sets output [m, N], which is contiguous, to x · weight + bias. On CUDA, this is enqueued on the current stream.
void multiply(const Rows& x, const Weight& weight, at::Tensor output);
// Sets output to factor · (other + x · weight), rounded once. Neither factor has a scale, and the weight has no bias.
void multiply_and_add(const Rows& x, const Weight& weight, const at::Tensor& other, double factor, at::Tensor output);

}  // namespace axon::fused
