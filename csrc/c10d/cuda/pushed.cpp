#include "c10d/fused/pushed.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>

#include "c10d/cuda/cutting.hpp"
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

// A product of fewer rows does not fill the device well.
constexpr int64_t kRowsOfPiece = 1024;
constexpr int64_t kMostPieces = 4;
static_assert(kMostPieces <= kMaxPieces);

using Pieces = c10::SmallVector<RowRange, kMostPieces>;

// In a group of two there is one peer: one piece is on its way while the next one is multiplied. What a rank sends in
// pieces its peer awaits in the same ones.
Pieces cut(RowRange block, size_t num_ranks) {
  if (num_ranks > 2 || block.num_rows < 2 * kRowsOfPiece) return {block};
  const int64_t num_pieces = std::min(block.num_rows / kRowsOfPiece, kMostPieces);
  const int64_t num_rows = rows_of_piece(block.num_rows, num_pieces);
  Pieces pieces;
  for (int64_t begin = 0; begin < block.num_rows; begin += num_rows) {
    pieces.push_back({.begin = block.begin + begin, .num_rows = std::min(num_rows, block.num_rows - begin)});
  }
  return pieces;
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
  return {.operation = DeviceOperation::kMatmulReduceScatter,
          .dtype = output_.scalar_type(),
          .num_bytes = static_cast<size_t>(rows_.all().num_rows) * bytes_a_row(),
          .workspace_bytes = rows_.num_ranks() * static_cast<size_t>(rows_.most_rows()) * bytes_a_row()};
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
    size_t offset = rows_.rank() * static_cast<size_t>(block.num_rows) * bytes_a_row();
    int number = 0;
    for (const RowRange piece : cut(block, rows_.num_ranks())) {
      const at::Tensor& partial = partials_.emplace_back(weight_.empty_output(piece.num_rows));
      multiply(call_.x.slice(piece), weight_, partial);
      partials_.size() == 1 ? pushing.begin() : pushing.follow_current();
      pushing.push(peer, offset, partial);
      pushing.tell(peer, number++);
      offset += partial.nbytes();
    }
  }
}

at::Tensor Scattering::slots(const Pushing& pushing) const {
  const auto num_ranks = static_cast<int64_t>(rows_.num_ranks());
  return pushing.tensor(0, {num_ranks, output_.size(0), output_.size(1)}, output_.options());
}

// What has come from the one peer is copied into the output, beside the products, and the own products are added there.
void Scattering::add_own(Pushing& pushing) {
  const RowRange own = rows_.own();
  const auto part_of = [&](const at::Tensor& tensor, RowRange piece) {
    return tensor.narrow(0, piece.begin - own.begin, piece.num_rows);
  };
  const at::Tensor theirs = slots(pushing)[static_cast<int64_t>(1 - rows_.rank())];
  const double factor = call_.reduction == c10d::ReduceOp::AVG ? 0.5 : 1;
  int number = 0;
  for (const RowRange piece : cut(own, rows_.num_ranks())) {
    pushing.await(number++);
    pushing.copy_out(part_of(theirs, piece), part_of(output_, piece));
    pushing.block_current();
    multiply_and_add(call_.x.slice(piece), weight_, factor, part_of(output_, piece));
  }
}

void Scattering::sum_all(Pushing& pushing) {
  const at::Tensor all = slots(pushing);
  multiply(call_.x.slice(rows_.own()), weight_, all[static_cast<int64_t>(rows_.rank())]);
  const size_t num_pieces = cut(rows_.own(), rows_.num_ranks()).size();
  for (size_t piece = 0; piece < num_pieces; ++piece) pushing.await(static_cast<int>(piece));
  pushing.block_current();
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
  std::optional<Pushing> pushing = Pushing::open(call.backend, x.values.device(),
                                                 {.operation = DeviceOperation::kAllGatherMatmul,
                                                  .dtype = x.values.scalar_type(),
                                                  .num_bytes = num_bytes,
                                                  .workspace_bytes = begin_of_scales + scale_bytes});
  if (!pushing) return std::nullopt;
  Rows all{.values = pushing->tensor(0, {num_rows, x.values.size(1)}, x.values.options()), .scales = x.scales};
  if (x.has_scale_a_row()) all.scales = pushing->tensor(begin_of_scales, {num_rows, 1}, x.scales.options());
  AllGatherMatmul cut_call = call;
  GatheringProducts products(cut_call);
  for (size_t i = 0; i < cut_call.weights.size(); ++i) {
    Weight& weight = cut_call.weights[i];
    weight.rows_at_once = fastest_rows_at_once(x, weight, products.output_rows(i, rows.own()));
  }
  const size_t first_row = static_cast<size_t>(rows.own().begin);
  pushing->begin();
  for (size_t distance = 1; distance < rows.num_ranks(); ++distance) {
    const size_t peer = (rows.rank() + distance) % rows.num_ranks();
    pushing->push(peer, first_row * row_bytes(x.values), x.values);
    if (x.has_scale_a_row()) pushing->push(peer, begin_of_scales + first_row * sizeof(float), x.scales);
    pushing->tell(peer, 0);
  }
  if (call.returns_gathered) pushing->copy_out(x.values, products.gathered_rows(rows.own()));
  products.multiply(x, rows.own());
  pushing->await(0);
  pushing->block_current();
  for (const RowRange range : rows.others()) {
    if (call.returns_gathered) pushing->copy_out(all.slice(range).values, products.gathered_rows(range));
    products.multiply(all.slice(range), range);
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
