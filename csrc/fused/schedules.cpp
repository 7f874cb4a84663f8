#include "fused/schedules.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "fused/pushed.hpp"

namespace axon::fused {

namespace {

// Returns one tensor per rank, as the group's collectives require for unequal row counts.
c10d_backend::TensorList split(const at::Tensor& tensor, const RowPartition& rows) {
  c10d_backend::TensorList parts;
  for (size_t rank = 0; rank < rows.num_ranks(); ++rank) {
    parts.push_back(slice_rows(tensor, rows.of(rank)));
  }
  return parts;
}

// Returns null if it runs on the current stream.
c10d_backend::AxonBackend::WorkPtr gather(const AllGatherMatmul& call, at::Tensor own, at::Tensor all) {
  c10d::AllgatherOptions options;
  options.asyncOp = own.is_cpu();
  if (call.rows.has_equal_rows()) return call.backend._allgather_base(all, own, options);
  std::vector<c10d_backend::TensorList> outputs{split(all, call.rows)};
  c10d_backend::TensorList inputs{std::move(own)};
  return call.backend.allgather(outputs, inputs, options);
}

void await(const std::vector<c10d_backend::AxonBackend::WorkPtr>& gathering) {
  for (const c10d_backend::AxonBackend::WorkPtr& work : gathering) {
    if (work) work->wait();
  }
}

void reduce_scatter(const MatmulReduceScatter& call, at::Tensor& partial, at::Tensor& output) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = call.reduction;
  options.asyncOp = false;
  if (call.rows.has_equal_rows()) {
    call.backend._reduce_scatter_base(output, partial, options);
    return;
  }
  c10d_backend::TensorList outputs{output};
  std::vector<c10d_backend::TensorList> inputs{split(partial, call.rows)};
  call.backend.reduce_scatter(outputs, inputs, options);
}

at::Tensor empty_rows(const at::Tensor& like, int64_t num_rows) {
  return at::empty({num_rows, like.size(1)}, like.options());
}

}  // namespace

GatheringProducts::GatheringProducts(const AllGatherMatmul& call)
    : call_(call), gathered_(empty_rows(call.x.values, call.returns_gathered ? call.rows.all().num_rows : 0)) {
  for (const Weight& weight : call.weights) outputs_.push_back(weight.empty_output(call.rows.all().num_rows));
}

void GatheringProducts::multiply(const Rows& rows, RowRange range) {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    fused::multiply(rows, call_.weights[i], output_rows(i, range));
  }
}

GatheredProducts run(const AllGatherMatmul& call) {
  if (call.x.values.is_cuda()) {
    if (std::optional<GatheredProducts> products = run_pushed(call)) return std::move(*products);
  }
  GatheringProducts products(call);
  Rows all = call.x;
  const RowRange range = call.rows.all();
  all.values = call.returns_gathered ? products.gathered_rows(range) : empty_rows(all.values, range.num_rows);
  std::vector<c10d_backend::AxonBackend::WorkPtr> gathering{gather(call, call.x.values, all.values)};
  if (call.x.has_scale_a_row()) {
    all.scales = empty_rows(call.x.scales, range.num_rows);
    gathering.push_back(gather(call, call.x.scales, all.scales));
  }
  if (all.values.is_cuda()) {
    await(gathering);
    products.multiply(all, range);
  } else {
    products.multiply(call.x, call.rows.own());
    await(gathering);
    for (const RowRange others : call.rows.others()) products.multiply(all.slice(others), others);
  }
  return std::move(products).finish();
}

static at::Tensor run_without_bias(const MatmulReduceScatter& call) {
  if (call.x.values.is_cuda()) {
    if (std::optional<at::Tensor> output = run_pushed(call)) return std::move(*output);
  }
  at::Tensor partial = call.weight.empty_output(call.rows.all().num_rows);
  multiply(call.x, call.weight, partial);
  at::Tensor output = call.weight.empty_output(call.rows.own().num_rows);
  reduce_scatter(call, partial, output);
  return output;
}

// The bias is added to the sum once, not to each product.
at::Tensor run(MatmulReduceScatter call) {
  const std::optional<at::Tensor> bias = std::exchange(call.weight.bias, std::nullopt);
  at::Tensor output = run_without_bias(call);
  if (bias) output.add_(*bias);
  return output;
}

}  // namespace axon::fused
