// torch.ops.axon: the operators' schemas, and the checks of their arguments. They run below autograd and autocast;
// Python defines their fake kernels and derivatives (torch_axon).
#include <ATen/ATen.h>
#include <torch/library.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "c10d/errors.hpp"
#include "fused/below_autograd.hpp"
#include "fused/schedules.hpp"
#include "python/shape_text.hpp"

namespace axon::fused {

namespace {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

[[noreturn]] void reject(c10d_backend::Argument argument, const std::string& found, const std::string& allowed) {
  c10d_backend::throw_value_error(std::string(argument.operation) + ": argument '" + argument.name + "' " + found +
                                  "; allowed: " + allowed);
}

void check_device(c10d_backend::Argument argument, const at::Tensor& tensor, const at::Tensor& x) {
  if (tensor.device() != x.device())
    reject(argument, "is on " + tensor.device().str(), x.device().str() + ", as 'x' is");
}

std::string shape_of(const at::Tensor& tensor) {
  return "has shape " + python::text_of(tensor.sizes());
}

c10::intrusive_ptr<c10d_backend::AxonBackend> backend_of(const char* operation, const std::string& group,
                                                         const at::Tensor& x) {
  c10d_backend::check_tensor({operation, "x"}, x);
  const auto backend = c10d::resolve_process_group(group)->getBackend(x.device().type());
  auto axon = c10::dynamic_intrusive_pointer_cast<c10d_backend::AxonBackend>(backend);
  if (axon && axon->is_coalescing()) {
    c10d_backend::throw_value_error(std::string(operation) +
                                    ": within a coalescing manager of its group; allowed: outside of it");
  }
  if (axon) return axon;
  reject({operation, "group_name"},
         "is '" + group + "', of backend " + backend->getBackendName() + " for " + x.device().str(),
         "groups whose backend is axon");
}

RowPartition partition(c10d_backend::Argument argument, at::IntArrayRef sizes,
                       const c10d_backend::AxonBackend& backend) {
  check_length(argument, sizes.size(), static_cast<size_t>(backend.getSize()));
  for (const int64_t size : sizes) {
    if (size < 0) reject(argument, "contains " + std::to_string(size), "sizes of 0 or more");
  }
  return {sizes, backend.getRank()};
}

void check_scale(c10d_backend::Argument argument, const at::Tensor& scale, const at::Tensor& x, int64_t num_vectors) {
  check_tensor(argument, scale);
  check_type(argument, scale, at::kFloat);
  check_device(argument, scale, x);
  if (scale.dim() == 2 ? scale.numel() == num_vectors : scale.numel() == 1) return;
  reject(argument, shape_of(scale),
         "one element of at most 1-d, or 2-d, one for each of " + std::to_string(num_vectors));
}

void check_rows(const char* operation, const Rows& x, int64_t num_rows) {
  if (x.values.dim() != 2 || x.values.size(0) != num_rows) {
    reject({operation, "x"}, shape_of(x.values), "shape [" + std::to_string(num_rows) + ", K], as 'sizes' has it");
  }
  if (x.scales.defined()) check_scale({operation, "scale_x"}, x.scales, x.values, num_rows);
}

void check_factors(const char* operation, const Rows& x, const Weight& weight) {
  const c10d_backend::Argument argument{operation, "weight"};
  check_tensor(argument, weight.values);
  check_device(argument, weight.values, x.values);
  if (weight.values.dim() != 2 || weight.values.size(0) != x.values.size(1)) {
    reject(argument, shape_of(weight.values), "shape [" + std::to_string(x.values.size(1)) + ", N], K as of 'x'");
  }
  if (weight.scale.defined()) {
    check_scale({operation, "scale"}, weight.scale, x.values, weight.num_columns());
  } else {
    check_type(argument, weight.values, x.values.scalar_type());
  }
  if (!weight.bias) return;
  const c10d_backend::Argument bias{operation, "bias"};
  check_tensor(bias, *weight.bias);
  check_device(bias, *weight.bias, x.values);
  check_type(bias, *weight.bias, weight.output_type);
  if (weight.bias->dim() == 1 && weight.bias->size(0) == weight.num_columns()) return;
  reject(bias, shape_of(*weight.bias), "shape [" + std::to_string(weight.num_columns()) + "]");
}

std::tuple<at::Tensor, std::vector<at::Tensor>> gather_and_multiply(const char* operation, AllGatherMatmul call) {
  if (call.weights.empty()) reject({operation, "weights"}, "is empty", "one weight or more");
  check_rows(operation, call.x, call.rows.own().num_rows);
  for (const Weight& weight : call.weights) check_factors(operation, call.x, weight);
  call.x = call.x.contiguous();
  GatheredProducts products = run(call);
  return {std::move(products.gathered), std::move(products.outputs)};
}

std::tuple<at::Tensor, std::vector<at::Tensor>> all_gather_matmul(const at::Tensor& x, at::TensorList weights,
                                                                  const OptionalTensors& biases, at::IntArrayRef sizes,
                                                                  const std::string& group_name, bool return_gathered) {
  static constexpr const char* kName = "all_gather_matmul";
  const BelowAutograd guard;
  c10d_backend::check_length({kName, "biases"}, biases.size(), weights.size());
  const auto backend = backend_of(kName, group_name, x);
  const RowPartition rows = partition({kName, "sizes"}, sizes, *backend);
  std::vector<Weight> factors;
  for (size_t i = 0; i < weights.size(); ++i) {
    factors.push_back({.values = weights[i], .bias = biases.get(i), .scale = {}, .output_type = x.scalar_type()});
  }
  return gather_and_multiply(kName, {.backend = *backend,
                                     .rows = rows,
                                     .x = {.values = x, .scales = {}},
                                     .weights = std::move(factors),
                                     .returns_gathered = return_gathered});
}

std::tuple<at::Tensor, std::vector<at::Tensor>> scaled_all_gather_matmul(
    const at::Tensor& x, const at::Tensor& scale_x, at::TensorList weights, at::TensorList scales,
    const OptionalTensors& biases, at::IntArrayRef sizes, const std::string& group_name,
    std::optional<at::ScalarType> out_dtype, bool use_fast_accum, bool return_gathered) {
  static constexpr const char* kName = "scaled_all_gather_matmul";
  const BelowAutograd guard;
  c10d_backend::check_length({kName, "biases"}, biases.size(), weights.size());
  c10d_backend::check_length({kName, "scales"}, scales.size(), weights.size());
  const auto backend = backend_of(kName, group_name, x);
  const RowPartition rows = partition({kName, "sizes"}, sizes, *backend);
  std::vector<Weight> factors;
  for (size_t i = 0; i < weights.size(); ++i) {
    factors.push_back({.values = weights[i],
                       .bias = biases.get(i),
                       .scale = scales[i],
                       .use_fast_accum = use_fast_accum,
                       .output_type = out_dtype.value_or(at::kBFloat16)});
  }
  return gather_and_multiply(kName, {.backend = *backend,
                                     .rows = rows,
                                     .x = {.values = x, .scales = scale_x},
                                     .weights = std::move(factors),
                                     .returns_gathered = return_gathered});
}

c10d::ReduceOp reduction_of(c10d_backend::Argument argument, const std::string& name) {
  if (name == "sum") return c10d::ReduceOp::SUM;
  if (name == "avg") return c10d::ReduceOp::AVG;
  reject(argument, "is '" + name + "'", "'sum' or 'avg'");
}

at::Tensor multiply_and_scatter(const char* operation, MatmulReduceScatter call) {
  check_rows(operation, call.x, call.rows.all().num_rows);
  check_factors(operation, call.x, call.weight);
  call.x = call.x.contiguous();
  return run(std::move(call));
}

at::Tensor matmul_reduce_scatter(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                 at::IntArrayRef sizes, const std::string& reduce_op, const std::string& group_name) {
  static constexpr const char* kName = "matmul_reduce_scatter";
  const BelowAutograd guard;
  const auto backend = backend_of(kName, group_name, x);
  const RowPartition rows = partition({kName, "sizes"}, sizes, *backend);
  const c10d::ReduceOp reduction = reduction_of({kName, "reduce_op"}, reduce_op);
  return multiply_and_scatter(kName,
                              {.backend = *backend,
                               .rows = rows,
                               .x = {.values = x, .scales = {}},
                               .weight = {.values = weight, .bias = bias, .scale = {}, .output_type = x.scalar_type()},
                               .reduction = reduction});
}

at::Tensor scaled_matmul_reduce_scatter(const at::Tensor& x, const at::Tensor& scale_x, const at::Tensor& weight,
                                        const at::Tensor& scale, const std::optional<at::Tensor>& bias,
                                        at::IntArrayRef sizes, const std::string& reduce_op,
                                        const std::string& group_name, std::optional<at::ScalarType> out_dtype,
                                        bool use_fast_accum) {
  static constexpr const char* kName = "scaled_matmul_reduce_scatter";
  const BelowAutograd guard;
  const auto backend = backend_of(kName, group_name, x);
  const RowPartition rows = partition({kName, "sizes"}, sizes, *backend);
  const c10d::ReduceOp reduction = reduction_of({kName, "reduce_op"}, reduce_op);
  return multiply_and_scatter(kName, {.backend = *backend,
                                      .rows = rows,
                                      .x = {.values = x, .scales = scale_x},
                                      .weight = {.values = weight,
                                                 .bias = bias,
                                                 .scale = scale,
                                                 .use_fast_accum = use_fast_accum,
                                                 .output_type = out_dtype.value_or(at::kBFloat16)},
                                      .reduction = reduction});
}

void implement(torch::Library& library) {
  library.impl("all_gather_matmul", &all_gather_matmul);
  library.impl("scaled_all_gather_matmul", &scaled_all_gather_matmul);
  library.impl("matmul_reduce_scatter", &matmul_reduce_scatter);
  library.impl("scaled_matmul_reduce_scatter", &scaled_matmul_reduce_scatter);
}

}  // namespace

TORCH_LIBRARY(axon, library) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  library.def(
      "all_gather_matmul(Tensor x, Tensor[] weights, Tensor?[] biases, SymInt[] sizes, str group_name, "
      "bool return_gathered) -> (Tensor gathered, Tensor[] outputs)",
      tags);
  library.def(
      "scaled_all_gather_matmul(Tensor x, Tensor scale_x, Tensor[] weights, Tensor[] scales, Tensor?[] biases, "
      "SymInt[] sizes, str group_name, ScalarType? out_dtype, bool use_fast_accum, bool return_gathered) "
      "-> (Tensor gathered, Tensor[] outputs)",
      tags);
  library.def(
      "matmul_reduce_scatter(Tensor x, Tensor weight, Tensor? bias, SymInt[] sizes, str reduce_op, str group_name) "
      "-> Tensor",
      tags);
  library.def(
      "scaled_matmul_reduce_scatter(Tensor x, Tensor scale_x, Tensor weight, Tensor scale, Tensor? bias, "
      "SymInt[] sizes, str reduce_op, str group_name, ScalarType? out_dtype, bool use_fast_accum) -> Tensor",
      tags);
}

TORCH_LIBRARY_IMPL(axon, CPU, library) {
  implement(library);
}

TORCH_LIBRARY_IMPL(axon, CUDA, library) {
  implement(library);
}

}  // namespace axon::fused
