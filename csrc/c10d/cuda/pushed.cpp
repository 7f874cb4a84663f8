#include "c10d/fused/pushed.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>

#include "c10d/cuda/pushing.hpp"

namespace axon {

namespace {

// Rows of float8's scales behind the values, at a boundary that every product takes.
constexpr size_t kAlignment = 256;

size_t aligned(size_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t row_bytes(const at::Tensor& rows) {
  return static_cast<size_t>(rows.size(1)) * rows.element_size();
}

// By how a product is cut, cuBLAS takes other kernels, whose last tiles leave more multiprocessors idle or fewer.
// Pieces of 4096 rows were fastest, or no slower, at all shapes measured (benchmarks/results/pieces_2xh200.jsonl).
constexpr int64_t kRowsOfPiece = 4096;

using Pieces = c10::SmallVector<RowRange, 8>;

// One or more, of whole tiles, but the last.
Pieces cut(int64_t num_rows, int64_t num_pieces) {
  static constexpr int64_t kRowsOfTile = 256;
  const int64_t num_tiles = (num_rows + kRowsOfTile - 1) / kRowsOfTile;
  const int64_t most_rows = (num_tiles + num_pieces - 1) / num_pieces * kRowsOfTile;
  Pieces pieces{{.begin = 0, .num_rows = std::min(most_rows, num_rows)}};
  for (int64_t begin = most_rows; begin < num_rows; begin += most_rows) {
    pieces.push_back({.begin = begin, .num_rows = std::min(most_rows, num_rows - begin)});
  }
  return pieces;
}

Pieces cut_for_products(int64_t num_rows) {
  return cut(num_rows, std::max<int64_t>(1, (num_rows + kRowsOfPiece / 2) / kRowsOfPiece));
}

// What a rank sends in pieces its peer awaits in the same ones. In a group of two there is one peer: one piece is on
// its way while the next one is multiplied, so there are two at least, unless they would not fill the device.
Pieces cut_for_pushes(int64_t num_rows, size_t num_ranks) {
  static constexpr int64_t kFewestRows = 1024, kFewestPieces = 2, kMostPieces = 4;
  static_assert(kMostPieces <= kMaxPieces);
  if (num_ranks > 2 || num_rows < kFewestRows) return cut(num_rows, 1);
  return cut(num_rows, std::clamp(num_rows / kRowsOfPiece, kFewestPieces, kMostPieces));
}

// In the accumulation type of the elements, rounded once.
void sum(const at::Tensor& slots, const c10d::ReduceOp& reduction, at::Tensor& output) {
  static constexpr std::array<int64_t, 1> kRanks{0};
  if (reduction == c10d::ReduceOp::AVG) {
    at::mean_out(output, slots, at::IntArrayRef(kRanks));
  } else if (slots.size(0) == 2) {
    at::add_out(output, slots[0], slots[1]);  // the faster kernel
  } else {
    at::sum_out(output, slots, at::IntArrayRef(kRanks));
  }
}

// A matmul_reduce_scatter, step by step.
class Scattering {
 public:
  explicit Scattering(const MatmulReduceScatter& call);
  Pushing::Plan plan() const;
  at::Tensor run(Pushing& pushing);

 private:
  void push_partials(Pushing& pushing);
  void add_own(Pushing& pushing);
  void sum_all(Pushing& pushing);
  size_t bytes_a_row() const { return row_bytes(output_); }
  Pieces cut(int64_t num_rows) const { return cut_for_pushes(num_rows, rows_.num_ranks()); }
  // Of the own rows: each rank's partial result, in the workspace.
  at::Tensor slots(const Pushing& pushing) const;

  const MatmulReduceScatter& call_;
  const RowPartition& rows_;
  Weight weight_;  // without the bias, which is a part of the sum, not of each product
  at::Tensor output_;
  std::vector<at::Tensor> partials_;  // read by the pushes
};

Scattering::Scattering(const MatmulReduceScatter& call) : call_(call), rows_(call.rows), weight_(call.weight) {
  weight_.bias.reset();
  output_ = weight_.empty_output(rows_.own().num_rows);
}

Pushing::Plan Scattering::plan() const {
  std::vector<int64_t> shared = rows_.begins();
  shared.push_back(weight_.num_columns());
  return {.operation = DeviceOperation::kMatmulReduceScatter,
          .dtype = output_.scalar_type(),
          .num_bytes = static_cast<size_t>(rows_.all().num_rows) * bytes_a_row(),
          .workspace_bytes = rows_.num_ranks() * static_cast<size_t>(rows_.most_rows()) * bytes_a_row(),
          .shared = std::move(shared)};
}

at::Tensor Scattering::run(Pushing& pushing) {
  push_partials(pushing);
  const bool can_add = rows_.num_ranks() == 2 && !weight_.scale.defined();
  can_add ? add_own(pushing) : sum_all(pushing);
  pushing.join();
  if (call_.weight.bias) output_.add_(*call_.weight.bias);
  return output_;
}

void Scattering::push_partials(Pushing& pushing) {
  for (size_t distance = 1; distance < rows_.num_ranks(); ++distance) {
    const size_t peer = (rows_.rank() + distance) % rows_.num_ranks();
    const RowRange block = rows_.of(peer);
    const auto first_row = static_cast<int64_t>(rows_.rank()) * block.num_rows;
    const at::Tensor& partial = partials_.emplace_back(weight_.empty_output(block.num_rows));
    int number = 0;
    for (const RowRange piece : cut(block.num_rows)) {
      const at::Tensor part = slice_rows(partial, piece);
      multiply(call_.x.slice(piece.behind(block.begin)), weight_, part);
      distance == 1 && number == 0 ? pushing.begin() : pushing.follow_current();
      pushing.push(peer, static_cast<size_t>(first_row + piece.begin) * bytes_a_row(), part);
      pushing.tell(peer, number++);
    }
  }
}

at::Tensor Scattering::slots(const Pushing& pushing) const {
  const auto num_ranks = static_cast<int64_t>(rows_.num_ranks());
  return pushing.tensor(0, {num_ranks, output_.size(0), output_.size(1)}, output_.options());
}

void Scattering::add_own(Pushing& pushing) {
  const RowRange own = rows_.own();
  const at::Tensor theirs = slots(pushing)[static_cast<int64_t>(1 - rows_.rank())];
  const double factor = call_.reduction == c10d::ReduceOp::AVG ? 0.5 : 1;
  int number = 0;
  for (const RowRange piece : cut(own.num_rows)) {
    pushing.await(number++);
    multiply_and_add(call_.x.slice(piece.behind(own.begin)), weight_, slice_rows(theirs, piece), factor,
                     slice_rows(output_, piece));
  }
}

void Scattering::sum_all(Pushing& pushing) {
  const at::Tensor all = slots(pushing);
  multiply(call_.x.slice(rows_.own()), weight_, all[static_cast<int64_t>(rows_.rank())]);
  const auto num_pieces = static_cast<int>(cut(rows_.own().num_rows).size());
  for (int piece = 0; piece < num_pieces; ++piece) pushing.await(piece);
  sum(all, call_.reduction, output_);
}

}  // namespace

std::optional<GatheredProducts> run_pushed(const AllGatherMatmul& call) {
  const Rows& x = call.x;
  const RowPartition& rows = call.rows;
  const c10::DeviceGuard on_device(x.values.device());
  const int64_t num_rows = rows.all().num_rows;
  const size_t num_bytes = static_cast<size_t>(num_rows) * row_bytes(x.values);
  const size_t begin_of_scales = aligned(num_bytes);
  const size_t scale_bytes = x.has_scale_a_row() ? static_cast<size_t>(num_rows) * sizeof(float) : 0;
  std::vector<int64_t> shared = rows.begins();
  shared.insert(shared.end(), {x.values.size(1), x.has_scale_a_row()});
  std::optional<Pushing> pushing = Pushing::open(call.backend, x.values.device(),
                                                 {.operation = DeviceOperation::kAllGatherMatmul,
                                                  .dtype = x.values.scalar_type(),
                                                  .num_bytes = num_bytes,
                                                  .workspace_bytes = begin_of_scales + scale_bytes,
                                                  .shared = std::move(shared)});
  if (!pushing) return std::nullopt;
  Rows all{.values = pushing->tensor(0, {num_rows, x.values.size(1)}, x.values.options()), .scales = x.scales};
  if (x.has_scale_a_row()) all.scales = pushing->tensor(begin_of_scales, {num_rows, 1}, x.scales.options());
  GatheringProducts products(call);
  const auto multiply = [&](const Rows& part, RowRange range) {
    for (const RowRange piece : cut_for_products(range.num_rows)) {
      products.multiply(part.slice(piece), piece.behind(range.begin));
    }
  };
  const size_t first_row = static_cast<size_t>(rows.own().begin);
  pushing->begin();
  for (size_t distance = 1; distance < rows.num_ranks(); ++distance) {
    const size_t peer = (rows.rank() + distance) % rows.num_ranks();
    pushing->push(peer, first_row * row_bytes(x.values), x.values);
    if (x.has_scale_a_row()) pushing->push(peer, begin_of_scales + first_row * sizeof(float), x.scales);
    pushing->tell(peer, 0);
  }
  if (call.returns_gathered) pushing->copy_pushed(x.values, products.gathered_rows(rows.own()));
  multiply(x, rows.own());
  pushing->await(0);
  for (const RowRange range : rows.others()) {
    const Rows part = all.slice(range);
    if (call.returns_gathered) pushing->copy_awaited(part.values, products.gathered_rows(range));
    multiply(part, range);
  }
  pushing->join();
  return std::move(products).finish();
}

std::optional<at::Tensor> run_pushed(const MatmulReduceScatter& call) {
  const c10::DeviceGuard on_device(call.x.values.device());
  Scattering scattering(call);
  std::optional<Pushing> pushing = Pushing::open(call.backend, call.x.values.device(), scattering.plan());
  if (!pushing) return std::nullopt;
  return scattering.run(*pushing);
}

}  // namespace axon
