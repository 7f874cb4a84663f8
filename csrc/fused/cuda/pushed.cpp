#include "fused/pushed.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "c10d/convert.hpp"
#include "fused/cuda/multiplier.hpp"
#include "fused/cuda/pushing.hpp"

namespace axon::fused {

namespace {

// The alignment of the float8 row scales that follow the values, and of the ranks' slots. All products accept it.
constexpr size_t kAlignment = 256;

size_t aligned(size_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t row_bytes(const at::Tensor& rows) {
  return static_cast<size_t>(rows.size(1)) * rows.element_size();
}

using RowTiles = c10::SmallVector<RowRange, 2>;

// A peer waits for the same tiles that a rank sends. A group of two has one peer, so the first half moves while the
// second is multiplied, unless halves would not fill the device. More tiles would make the products slower.
RowTiles cut(int64_t num_rows, size_t num_ranks) {
  static constexpr int64_t kFewestRows = 1024, kRowsOfTile = 256;
  if (num_ranks > 2 || num_rows < kFewestRows) return {{.begin = 0, .num_rows = num_rows}};
  const int64_t half = num_rows / 2 / kRowsOfTile * kRowsOfTile;
  return {{.begin = 0, .num_rows = half}, {.begin = half, .num_rows = num_rows - half}};
}

// One call of matmul_reduce_scatter, step by step.
class Scattering {
 public:
  Scattering(const MatmulReduceScatter& call, Pushing& pushing);
  static Pushing::Plan plan(const MatmulReduceScatter& call);
  at::Tensor run();

 private:
  void push_partials();
  void add_own();
  void sum_all();
  // The size of one rank's slot in the workspace of the rank that owns these rows. The slot holds that rank's partial
  // result.
  size_t slot_bytes(RowRange owned) const { return aligned(static_cast<size_t>(owned.num_rows) * row_bytes(output_)); }
  at::Tensor own_slot_of(size_t rank) const {
    return pushing_.tensor(rank * slot_bytes(rows_.own()), output_.sizes(), output_.options());
  }

  const MatmulReduceScatter& call_;
  const RowPartition& rows_;
  Pushing& pushing_;
  Multiplier multiplier_;
  at::Tensor output_;
  at::Tensor partials_;  // read by the pushes
};

Scattering::Scattering(const MatmulReduceScatter& call, Pushing& pushing)
    : call_(call),
      rows_(call.rows),
      pushing_(pushing),
      multiplier_(call.x.values.device()),
      output_(call.weight.empty_output(rows_.own().num_rows)),
      partials_(call.weight.empty_output(rows_.all().num_rows - rows_.own().num_rows)) {}

Pushing::Plan Scattering::plan(const MatmulReduceScatter& call) {
  const int64_t num_columns = call.weight.num_columns();
  const size_t bytes_a_row = static_cast<size_t>(num_columns) * at::elementSize(call.weight.output_type);
  std::vector<int64_t> shared = call.rows.begins();
  shared.insert(shared.end(), {num_columns, call.reduction == c10d::ReduceOp::AVG});
  return {.operation = cuda::DeviceOperation::kMatmulReduceScatter,
          .dtype = call.weight.output_type,
          .num_bytes = static_cast<size_t>(call.rows.all().num_rows) * bytes_a_row,
          .workspace_bytes = call.rows.num_ranks() * aligned(static_cast<size_t>(call.rows.most_rows()) * bytes_a_row),
          .shared = std::move(shared)};
}

at::Tensor Scattering::run() {
  push_partials();
  const bool can_add = rows_.num_ranks() == 2 && !call_.weight.scale.defined();
  can_add ? add_own() : sum_all();
  pushing_.join();
  return output_;
}

void Scattering::push_partials() {
  RowRange partial;
  for (size_t distance = 1; distance < rows_.num_ranks(); ++distance) {
    const size_t peer = (rows_.rank() + distance) % rows_.num_ranks();
    const RowRange block = rows_.of(peer);
    partial = {.begin = partial.begin + partial.num_rows, .num_rows = block.num_rows};
    const size_t slot = rows_.rank() * slot_bytes(block);
    int number = 0;
    for (const RowRange tile : cut(block.num_rows, rows_.num_ranks())) {
      const at::Tensor part = slice_rows(partials_, tile.shifted_by(partial.begin));
      multiplier_.multiply(call_.x.slice(tile.shifted_by(block.begin)), call_.weight, part);
      distance == 1 && number == 0 ? pushing_.begin() : pushing_.follow_current();
      pushing_.push(peer, slot + static_cast<size_t>(tile.begin) * row_bytes(output_), part);
      pushing_.tell(peer, number++);
    }
  }
}

void Scattering::add_own() {
  const RowRange own = rows_.own();
  const at::Tensor theirs = own_slot_of(1 - rows_.rank());
  const double factor = call_.reduction == c10d::ReduceOp::AVG ? 0.5 : 1;
  int number = 0;
  for (const RowRange tile : cut(own.num_rows, rows_.num_ranks())) {
    pushing_.await(number++);
    multiplier_.multiply_and_add(call_.x.slice(tile.shifted_by(own.begin)), call_.weight, slice_rows(theirs, tile),
                                 factor, slice_rows(output_, tile));
  }
}

void Scattering::sum_all() {
  multiplier_.multiply(call_.x.slice(rows_.own()), call_.weight, own_slot_of(rows_.rank()));
  const auto num_tiles = static_cast<int>(cut(rows_.own().num_rows, rows_.num_ranks()).size());
  for (int tile = 0; tile < num_tiles; ++tile) pushing_.await(tile);
  pushing_.reduce(slot_bytes(rows_.own()),
                  c10d_backend::to_reduction(call_.reduction, "matmul_reduce_scatter").reduction, output_);
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
                                                 {.operation = cuda::DeviceOperation::kAllGatherMatmul,
                                                  .dtype = x.values.scalar_type(),
                                                  .num_bytes = num_bytes,
                                                  .workspace_bytes = begin_of_scales + scale_bytes,
                                                  .shared = std::move(shared)});
  if (!pushing) return std::nullopt;
  Rows all{.values = pushing->tensor(0, {num_rows, x.values.size(1)}, x.values.options()), .scales = x.scales};
  if (x.has_scale_a_row()) all.scales = pushing->tensor(begin_of_scales, {num_rows, 1}, x.scales.options());
  GatheringProducts products(call);
  Multiplier multiplier(x.values.device());
  const auto multiply = [&](const Rows& part, RowRange range) {
    for (size_t i = 0; i < call.weights.size(); ++i) {
      multiplier.multiply(part, call.weights[i], products.output_rows(i, range));
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
  std::optional<Pushing> pushing = Pushing::open(call.backend, call.x.values.device(), Scattering::plan(call));
  if (!pushing) return std::nullopt;
  return Scattering(call, *pushing).run();
}

}  // namespace axon::fused
