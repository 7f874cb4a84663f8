#include "c10d/backend.hpp"

namespace axon::c10d_backend {

AxonBackend::WorkPtr AxonBackend::broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) {
  static constexpr Call kCall{c10d::OpType::BROADCAST, "axon:broadcast"};
  static constexpr Argument kTensors{"broadcast", "tensors"};
  const at::Tensor& tensor = single(kTensors, tensors);
  check_rank({kTensors.operation, "src"}, options.rootRank, size_);
  auto work = make_work(kCall, tensors);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kBroadcast, tensor);
  operation.arguments.root = static_cast<int>(options.rootRank);
  operation.num_elements = count_elements(tensor, operation.arguments.dtype);
  operation.add_output(tensor, options.rootRank == rank_ ? Access::kRead : Access::kWrite);
  return run(std::move(work), kCall, mode_of(options));
}

void AxonBackend::add_all_gather(AxonWork& work, const at::Tensor& input, const TensorList& outputs) const {
  static constexpr Argument kOutputs{"all_gather", "tensor_list"};
  static constexpr Argument kInput{"all_gather", "tensor"};
  check_tensor(kInput, input);
  check_length(kOutputs, outputs.size(), size_);
  check_tensors(kOutputs, outputs, input.scalar_type());
  check_num_elements(kOutputs, outputs[rank_], input.numel());
  WorkOperation& operation = add_operation(work, transport::OperationKind::kAllGather, input);
  operation.add_input(input);
  for (const at::Tensor& output : outputs) {
    operation.num_elements += count_elements(output, operation.arguments.dtype);
    operation.add_output(output);
  }
}

AxonBackend::WorkPtr AxonBackend::allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                                            const c10d::AllgatherOptions& options) {
  static constexpr Call kCall{c10d::OpType::ALLGATHER, "axon:all_gather"};
  const at::Tensor& input = single({"all_gather", "tensor"}, inputs);
  const TensorList& blocks = single({"all_gather", "tensor_list"}, outputs);
  auto work = make_work(kCall, inputs);
  add_all_gather(*work, input, blocks);
  return run(std::move(work), kCall, mode_of(options));
}

// outputs[rank][i] comes from that rank's inputs[i].
AxonBackend::WorkPtr AxonBackend::allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                                                      const c10d::AllgatherOptions& options) {
  static constexpr Call kCall{c10d::OpType::ALLGATHER_COALESCED, "axon:all_gather_coalesced"};
  static constexpr Argument kOutputs{"all_gather_coalesced", "output_tensor_lists"};
  check_length(kOutputs, outputs.size(), size_);
  for (const TensorList& list : outputs) check_length(kOutputs, list.size(), inputs.size());
  auto work = make_work(kCall, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorList blocks;
    for (const TensorList& list : outputs) blocks.push_back(list[i]);
    add_all_gather(*work, inputs[i], blocks);
  }
  return run(std::move(work), kCall, mode_of(options));
}

void AxonBackend::add_all_gather(AxonWork& work, const at::Tensor& input, const at::Tensor& output) const {
  static constexpr Argument kOutput{"all_gather_into_tensor", "output"};
  check_tensor({kOutput.operation, "input"}, input);
  check_tensor(kOutput, output);
  check_type(kOutput, output, input.scalar_type());
  check_num_elements(kOutput, output, input.numel() * size_);
  WorkOperation& operation = add_operation(work, transport::OperationKind::kAllGather, input);
  operation.num_elements = count_elements(output, operation.arguments.dtype);
  operation.add_input(input);
  operation.add_output_blocks(output, c10::SmallVector<size_t, 16>(size_, input.nbytes()));
}

AxonBackend::WorkPtr AxonBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& options) {
  static constexpr Call kCall{c10d::OpType::_ALLGATHER_BASE, "axon:_all_gather_base"};
  auto work = make_work(kCall, {input});
  add_all_gather(*work, input, output);
  return run(std::move(work), kCall, mode_of(options));
}

AxonBackend::WorkPtr AxonBackend::allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                                  const c10d::AllgatherOptions& options) {
  static constexpr Call kCall{c10d::OpType::COALESCED, "axon:all_gather_into_tensor_coalesced"};
  check_length({kCall.name(), "outputs"}, outputs.size(), inputs.size());
  auto work = make_work(kCall, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) add_all_gather(*work, inputs[i], outputs[i]);
  return run(std::move(work), kCall, mode_of(options));
}

AxonBackend::WorkPtr AxonBackend::gather(std::vector<TensorList>& outputs, TensorList& inputs,
                                         const c10d::GatherOptions& options) {
  static constexpr Call kCall{c10d::OpType::GATHER, "axon:gather"};
  static constexpr Argument kOutputs{"gather", "gather_list"};
  const at::Tensor& input = single({"gather", "tensor"}, inputs);
  check_rank({"gather", "dst"}, options.rootRank, size_);
  const bool is_root = options.rootRank == rank_;
  check_length(kOutputs, outputs.size(), is_root ? 1 : 0);
  if (is_root) {
    check_length(kOutputs, outputs.front().size(), size_);
    check_tensors(kOutputs, outputs.front(), input.scalar_type());
    for (const at::Tensor& output : outputs.front()) check_num_elements(kOutputs, output, input.numel());
  }
  auto work = make_work(kCall, inputs);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kGather, input);
  operation.arguments.root = static_cast<int>(options.rootRank);
  operation.num_elements = count_elements(input, operation.arguments.dtype);
  operation.add_input(input);
  if (is_root) {
    for (const at::Tensor& output : outputs.front()) operation.add_output(output);
  }
  return run(std::move(work), kCall, mode_of(options));
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
AxonBackend::WorkPtr AxonBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                const c10d::GatherOptions& options) {
  static constexpr Call kCall{c10d::OpType::GATHER, "axon:gather_single"};
  static constexpr Argument kOutput{"gather_single", "output"};
  check_tensor({"gather_single", "input"}, input);
  check_rank({"gather_single", "dst"}, options.rootRank, size_);
  const bool is_root = options.rootRank == rank_;
  if (is_root) {
    check_tensor(kOutput, output);
    check_type(kOutput, output, input.scalar_type());
    check_num_elements(kOutput, output, input.numel() * size_);
  }
  auto work = make_work(kCall, {input});
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kGather, input);
  operation.arguments.root = static_cast<int>(options.rootRank);
  operation.num_elements = count_elements(input, operation.arguments.dtype);
  operation.add_input(input);
  if (is_root) operation.add_output_blocks(output, c10::SmallVector<size_t, 16>(size_, input.nbytes()));
  return run(std::move(work), kCall, mode_of(options));
}
#endif

AxonBackend::WorkPtr AxonBackend::scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                                          const c10d::ScatterOptions& options) {
  static constexpr Call kCall{c10d::OpType::SCATTER, "axon:scatter"};
  static constexpr Argument kInputs{"scatter", "scatter_list"};
  const at::Tensor& output = single({"scatter", "tensor"}, outputs);
  check_rank({"scatter", "src"}, options.rootRank, size_);
  const bool is_root = options.rootRank == rank_;
  check_length(kInputs, inputs.size(), is_root ? 1 : 0);
  if (is_root) {
    check_length(kInputs, inputs.front().size(), size_);
    check_tensors(kInputs, inputs.front(), output.scalar_type());
    for (const at::Tensor& input : inputs.front()) check_num_elements(kInputs, input, output.numel());
  }
  auto work = make_work(kCall, is_root ? inputs.front() : outputs);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kScatter, output);
  operation.arguments.root = static_cast<int>(options.rootRank);
  operation.num_elements = count_elements(output, operation.arguments.dtype);
  if (is_root) {
    for (const at::Tensor& input : inputs.front()) operation.add_input(input);
  }
  operation.add_output(output);
  return run(std::move(work), kCall, mode_of(options));
}

AxonBackend::WorkPtr AxonBackend::alltoall(TensorList& outputs, TensorList& inputs,
                                           const c10d::AllToAllOptions& options) {
  static constexpr Call kCall{c10d::OpType::ALLTOALL, "axon:all_to_all"};
  static constexpr Argument kInputs{"all_to_all", "input_tensor_list"};
  static constexpr Argument kOutputs{"all_to_all", "output_tensor_list"};
  check_length(kInputs, inputs.size(), size_);
  check_length(kOutputs, outputs.size(), size_);
  check_tensor(kInputs, inputs.front());
  check_tensors(kInputs, inputs, inputs.front().scalar_type());
  check_tensors(kOutputs, outputs, inputs.front().scalar_type());
  check_num_elements(kOutputs, outputs[rank_], inputs[rank_].numel());
  auto work = make_work(kCall, inputs);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kAllToAll, inputs.front());
  for (const at::Tensor& input : inputs) operation.add_input(input);
  for (const at::Tensor& output : outputs) operation.add_output(output);
  return run(std::move(work), kCall, mode_of(options));
}

static c10::SmallVector<size_t, 16> rows_to_bytes(const std::vector<int64_t>& rows, const at::Tensor& tensor) {
  int64_t num_rows = 0;
  for (const int64_t each : rows) num_rows += each;
  const size_t row_bytes = num_rows == 0 ? 0 : tensor.nbytes() / static_cast<size_t>(num_rows);
  c10::SmallVector<size_t, 16> bytes;
  for (const int64_t each : rows) bytes.push_back(static_cast<size_t>(each) * row_bytes);
  return bytes;
}

AxonBackend::WorkPtr AxonBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& options) {
  static constexpr Call kCall{c10d::OpType::ALLTOALL_BASE, "axon:all_to_all_single"};
  check_tensor({kCall.name(), "input"}, input);
  check_tensor({kCall.name(), "output"}, output);
  check_type({kCall.name(), "output"}, output, input.scalar_type());
  const auto input_rows = check_splits({kCall.name(), "input_split_sizes"}, input, input_splits, size_);
  const auto output_rows = check_splits({kCall.name(), "output_split_sizes"}, output, output_splits, size_);
  const auto input_bytes = rows_to_bytes(input_rows, input);
  const auto output_bytes = rows_to_bytes(output_rows, output);
  check_num_bytes({kCall.name(), "output_split_sizes"}, output_bytes[rank_], input_bytes[rank_]);
  auto work = make_work(kCall, {input});
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kAllToAll, input);
  operation.add_input_blocks(input, input_bytes);
  operation.add_output_blocks(output, output_bytes);
  return run(std::move(work), kCall, mode_of(options));
}

}  // namespace axon::c10d_backend
