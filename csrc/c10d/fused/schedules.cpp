#include "c10d/fused/schedules.hpp"

#include <ATen/ATen.h>

namespace axon {

namespace {

// As collectives of the group want rows that differ in number: a tensor a rank.
TensorList split(const at::Tensor& tensor, const RowPartition& rows) {
  TensorList parts;
  for (size_t rank = 0; rank < rows.num_ranks(); ++rank) {
    const RowRange range = rows.of(rank);
    parts.push_back(tensor.narrow(0, range.begin, range.num_rows));
  }
  return parts;
}

AxonBackend::WorkPtr gather(AxonBackend& backend, const RowPartition& rows, at::Tensor own, at::Tensor all) {
  c10d::AllgatherOptions options;
  options.asyncOp = true;
  if (rows.is_even()) return backend._allgather_base(all, own, options);
  std::vector<TensorList> outputs{split(all, rows)};
  TensorList inputs{std::move(own)};
  return backend.allgather(outputs, inputs, options);
}

void reduce_scatter(const MatmulReduceScatter& call, at::Tensor& partial, at::Tensor& output) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = call.reduction;
  options.asyncOp = false;
  if (call.rows.is_even()) {
    call.backend._reduce_scatter_base(output, partial, options);
    return;
  }
  TensorList outputs{output};
  std::vector<TensorList> inputs{split(partial, call.rows)};
  call.backend.reduce_scatter(outputs, inputs, options);
}

Rows empty_rows(const Rows& like, int64_t num_rows) {
  Rows rows{.values = at::empty({num_rows, like.values.size(1)}, like.values.options()), .scales = like.scales};
  if (like.has_scale_a_row()) rows.scales = at::empty({num_rows, 1}, like.scales.options());
  return rows;
}

class GatheringProducts {
 public:
  explicit GatheringProducts(const AllGatherMatmul& call) : call_(call) {
    for (const Weight& weight : call.weights) outputs_.push_back(weight.empty_output(call.rows.all().num_rows));
  }

  // x: these rows.
  void multiply(const Rows& x, RowRange range) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      axon::multiply(x, call_.weights[i], outputs_[i].narrow(0, range.begin, range.num_rows));
    }
  }

  GatheredProducts finish(at::Tensor gathered) {
    if (!call_.returns_gathered) gathered = empty_rows(call_.x, 0).values;
    return {.gathered = std::move(gathered), .outputs = std::move(outputs_)};
  }

 private:
  const AllGatherMatmul& call_;
  std::vector<at::Tensor> outputs_;
};

}  // namespace

GatheredProducts run(const AllGatherMatmul& call) {
  GatheringProducts products(call);
  const Rows all = empty_rows(call.x, call.rows.all().num_rows);
  TensorList parts{all.values};
  std::vector<AxonBackend::WorkPtr> gathering{gather(call.backend, call.rows, call.x.values, all.values)};
  if (call.x.has_scale_a_row()) {
    gathering.push_back(gather(call.backend, call.rows, call.x.scales, all.scales));
  }
  products.multiply(call.x, call.rows.own());
  for (const AxonBackend::WorkPtr& work : gathering) work->wait();
  for (const RowRange range : {call.rows.before_own(), call.rows.behind_own()}) {
    products.multiply(all.slice(range), range);
  }
  return products.finish(all.values);
}

at::Tensor run(const MatmulReduceScatter& call) {
  Weight weight = call.weight;
  const std::optional<at::Tensor> bias = std::exchange(weight.bias, std::nullopt);
  at::Tensor partial = weight.empty_output(call.rows.all().num_rows);
  multiply(call.x, weight, partial);
  at::Tensor output = weight.empty_output(call.rows.own().num_rows);
  reduce_scatter(call, partial, output);
  if (bias) output.add_(*bias);
  return output;
}

}  // namespace axon
