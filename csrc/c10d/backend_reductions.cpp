#include "c10d/backend.hpp"

namespace axon::c10d_backend {

static void set_reduction(WorkOperation& operation, const ReductionSpecification& reduction) noexcept {
  operation.arguments.reduction = reduction.reduction;
  operation.arguments.premul_factor = reduction.premul_factor;
}

void AxonBackend::add_all_reduce(AxonWork& work, const at::Tensor& tensor,
                                 const ReductionSpecification& reduction) const {
  WorkOperation& operation = add_operation(work, transport::OperationKind::kAllReduce, tensor);
  set_reduction(operation, reduction);
  operation.num_elements = static_cast<uint64_t>(tensor.numel());
  operation.add_output(tensor, Access::kReadWrite);
}

AxonBackend::WorkPtr AxonBackend::allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) {
  static constexpr Call kCall{c10d::OpType::ALLREDUCE, "axon:all_reduce"};
  static constexpr Argument kTensors{"all_reduce", "tensors"};
  if (C10_UNLIKELY(tensors.size() == 1 && tensors.front().is_sparse())) return allreduce_sparse(tensors, options);
  const at::Tensor& tensor = single(kTensors, tensors);
  const ReductionSpecification reduction = to_reduction(options.reduceOp, kTensors.operation);
  check_reduction(kTensors, tensor, reduction, size_);
  auto work = make_work(kCall, tensors);
  add_all_reduce(*work, tensor, reduction);
  return run(std::move(work), kCall, mode_of(options));
}

AxonBackend::WorkPtr AxonBackend::allreduce_coalesced(TensorList& tensors,
                                                      const c10d::AllreduceCoalescedOptions& options) {
  static constexpr Call kCall{c10d::OpType::ALLREDUCE_COALESCED, "axon:all_reduce_coalesced"};
  static constexpr Argument kTensors{"all_reduce_coalesced", "tensors"};
  const ReductionSpecification reduction = to_reduction(options.reduceOp, kTensors.operation);
  for (const at::Tensor& tensor : tensors) {
    check_tensor(kTensors, tensor);
    check_reduction(kTensors, tensor, reduction, size_);
  }
  auto work = make_work(kCall, tensors);
  for (const at::Tensor& tensor : tensors) add_all_reduce(*work, tensor, reduction);
  return run(std::move(work), kCall, mode_of(options));
}

AxonBackend::WorkPtr AxonBackend::reduce(TensorList& tensors, const c10d::ReduceOptions& options) {
  static constexpr Call kCall{c10d::OpType::REDUCE, "axon:reduce"};
  static constexpr Argument kTensors{"reduce", "tensors"};
  const at::Tensor& tensor = single(kTensors, tensors);
  const ReductionSpecification reduction = to_reduction(options.reduceOp, kTensors.operation);
  check_reduction(kTensors, tensor, reduction, size_);
  check_rank({kTensors.operation, "dst"}, options.rootRank, size_);
  auto work = make_work(kCall, tensors);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kReduce, tensor);
  set_reduction(operation, reduction);
  operation.arguments.root = static_cast<int>(options.rootRank);
  operation.num_elements = static_cast<uint64_t>(tensor.numel());
  operation.add_in_place(tensor, options.rootRank == rank_ ? Access::kReadWrite : Access::kRead);
  return run(std::move(work), kCall, mode_of(options));
}

AxonBackend::WorkPtr AxonBackend::reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  static constexpr Call kCall{c10d::OpType::REDUCE_SCATTER, "axon:reduce_scatter"};
  static constexpr Argument kInputs{"reduce_scatter", "input_list"};
  static constexpr Argument kOutput{"reduce_scatter", "output"};
  const at::Tensor& output = single(kOutput, outputs);
  const TensorList& blocks = single(kInputs, inputs);
  const ReductionSpecification reduction = to_reduction(options.reduceOp, kInputs.operation);
  check_length(kInputs, blocks.size(), size_);
  check_tensors(kInputs, blocks, output.scalar_type());
  check_num_elements(kOutput, output, blocks[rank_].numel());
  check_reduction(kOutput, output, reduction, size_);
  auto work = make_work(kCall, blocks);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kReduceScatter, output);
  set_reduction(operation, reduction);
  for (const at::Tensor& block : blocks) {
    operation.num_elements += static_cast<uint64_t>(block.numel());
    operation.add_input(block);
  }
  operation.add_output(output);
  return run(std::move(work), kCall, mode_of(options));
}

void AxonBackend::add_reduce_scatter(AxonWork& work, const at::Tensor& input, const at::Tensor& output,
                                     const ReductionSpecification& reduction) const {
  static constexpr Argument kInput{"reduce_scatter_tensor", "input"};
  check_tensor({kInput.operation, "output"}, output);
  check_tensor(kInput, input);
  check_type(kInput, input, output.scalar_type());
  check_num_elements(kInput, input, output.numel() * size_);
  check_reduction(kInput, input, reduction, size_);
  WorkOperation& operation = add_operation(work, transport::OperationKind::kReduceScatter, input);
  set_reduction(operation, reduction);
  operation.num_elements = static_cast<uint64_t>(input.numel());
  operation.add_input_blocks(input, c10::SmallVector<size_t, 16>(size_, output.nbytes()));
  operation.add_output(output);
}

AxonBackend::WorkPtr AxonBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  static constexpr Call kCall{c10d::OpType::_REDUCE_SCATTER_BASE, "axon:_reduce_scatter_base"};
  auto work = make_work(kCall, {input});
  add_reduce_scatter(*work, input, output, to_reduction(options.reduceOp, kCall.name()));
  return run(std::move(work), kCall, mode_of(options));
}

AxonBackend::WorkPtr AxonBackend::reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                                  const c10d::ReduceScatterOptions& options) {
  static constexpr Call kCall{c10d::OpType::COALESCED, "axon:reduce_scatter_tensor_coalesced"};
  const ReductionSpecification reduction = to_reduction(options.reduceOp, kCall.name());
  check_length({kCall.name(), "outputs"}, outputs.size(), inputs.size());
  auto work = make_work(kCall, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) add_reduce_scatter(*work, inputs[i], outputs[i], reduction);
  return run(std::move(work), kCall, mode_of(options));
}

}  // namespace axon::c10d_backend
