// all_reduce of sparse tensors: gathers the indices and values of all ranks, and adds them up in rank order.
//
// Runs synchronously within the call, even if the call is asynchronous: the ranks must know the sizes before they can
// receive the data.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "c10d/backend.hpp"
#include "c10d/errors.hpp"

namespace axon::c10d_backend {

at::Tensor AxonBackend::sum_sparse(const at::Tensor& tensor, std::chrono::milliseconds timeout) {
  const c10d::AllgatherOptions options{.timeout = timeout, .asyncOp = false};
  at::Tensor own_indices = tensor.indices();
  at::Tensor own_values = tensor.values();
  at::Tensor own_count = at::full({1}, own_values.size(0), at::kLong);
  at::Tensor counts = at::empty({size_}, at::kLong);
  _allgather_base(counts, own_count, options);

  std::vector<TensorList> indices(1);
  std::vector<TensorList> values(1);
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t count = counts[rank].item<int64_t>();
    std::vector<int64_t> value_sizes = own_values.sizes().vec();
    value_sizes[0] = count;
    indices[0].push_back(at::empty({own_indices.size(0), count}, own_indices.options()));
    values[0].push_back(at::empty(value_sizes, own_values.options()));
  }
  TensorList own{own_indices};
  allgather(indices, own, options);
  own = {own_values};
  allgather(values, own, options);
  return at::sparse_coo_tensor(at::cat(indices[0], 1), at::cat(values[0], 0), tensor.sizes()).coalesce();
}

AxonBackend::WorkPtr AxonBackend::allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& options) {
  static constexpr Call kCall{c10d::OpType::_ALLREDUCE_SPARSE, "axon:sparse_all_reduce"};
  check_length({"all_reduce", "tensors"}, tensors.size(), 1);
  const at::Tensor& tensor = tensors.front();
  static constexpr Argument kTensors{"all_reduce", "tensors"};
  if (!tensor.is_sparse() || !(tensor.is_cpu() || tensor.is_cuda())) {
    throw_value_error("all_reduce: argument 'tensors' is on " + tensor.device().str() +
                      "; allowed: sparse COO tensors on the CPU or on CUDA devices");
  }
  check_tensor(kTensors, tensor._indices());
  check_tensor(kTensors, tensor._values());
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM) {
    throw_value_error("all_reduce: argument 'op' is ReduceOp " + std::to_string(options.reduceOp.op_) +
                      "; allowed for sparse tensors: SUM");
  }
  if (coalesced_) throw_value_error("all_reduce: sparse tensors cannot be coalesced");
  if (estimate_)
    throw_value_error("all_reduce: the time of sparse tensors cannot be estimated; allowed: dense tensors");
  auto work = make_work(kCall, tensors);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor own = tensor.coalesce();
  // Now, because all ranks must gather all parts or none.
  if (refuses_nans_) refuse_nans({{.operation = kTensors.operation, .tensor = own.values()}}, rank_);
  tensor.copy_(sum_sparse(own, options.timeout));
  work->add_result(tensor);
  // On the CPU the work is complete here. On a GPU it is complete once the current stream has reached this point.
  return run(std::move(work), kCall, {.asynchronous = true, .timeout = options.timeout});
}

}  // namespace axon::c10d_backend
