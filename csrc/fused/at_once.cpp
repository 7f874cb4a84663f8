#include "fused/at_once.hpp"

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "fused/below_autograd.hpp"
#include "fused/schedules.hpp"
#include "python/tensor_memory.hpp"

namespace axon::fused {

namespace {

// Returns whether the dispatcher would call the kernel directly: the tensor needs no gradient, cast, mode, transform or
// subclass.
bool goes_to_the_kernel(const at::Tensor& tensor) {
  if (tensor.requires_grad() && at::GradMode::is_enabled()) return false;
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  const c10::DispatchKeySet keys = ((tensor.key_set() | local.included_) - local.excluded_) -
                                   c10::autograd_dispatch_keyset_with_ADInplaceOrView -
                                   c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  const c10::DispatchKey key = keys.highestPriorityTypeId();
  return key == c10::DispatchKey::CPU || key == c10::DispatchKey::CUDA;
}

// Returns whether the arguments fit. If they do not, the operators report the reason.
bool fits(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const auto is_alike = [&](const at::Tensor& tensor, int64_t num_dimensions) {
    return tensor.dim() == num_dimensions && tensor.scalar_type() == x.scalar_type() && tensor.device() == x.device() &&
           goes_to_the_kernel(tensor) && python::has_memory(tensor);
  };
  return is_alike(weight, 2) && weight.size(0) == x.size(1) &&
         (!bias || (is_alike(*bias, 1) && bias->size(0) == weight.size(1)));
}

// Returns null if the group has another backend.
c10::intrusive_ptr<c10d_backend::AxonBackend> backend_of(const std::string& group, const at::Tensor& x) {
  return c10::dynamic_intrusive_pointer_cast<c10d_backend::AxonBackend>(
      c10d::resolve_process_group(group)->getBackend(x.device().type()));
}

bool is_ready(const at::Tensor& x) {
  return x.dim() == 2 && x.is_contiguous() && python::has_memory(x) && goes_to_the_kernel(x);
}

Weight weight_of(const at::Tensor& values, const std::optional<at::Tensor>& bias) {
  return {.values = values, .bias = bias, .scale = {}, .output_type = values.scalar_type()};
}

}  // namespace

std::optional<std::tuple<at::Tensor, std::vector<at::Tensor>>> all_gather_matmul_at_once(
    const at::Tensor& x, const std::vector<at::Tensor>& weights, const std::vector<std::optional<at::Tensor>>& biases,
    const std::string& group_name, bool return_gathered) {
  if (!is_ready(x) || weights.empty() || weights.size() != biases.size()) return std::nullopt;
  std::vector<Weight> factors;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!fits(x, weights[i], biases[i])) return std::nullopt;
    factors.push_back(weight_of(weights[i], biases[i]));
  }
  const auto backend = backend_of(group_name, x);
  if (!backend || backend->is_coalescing()) return std::nullopt;
  RECORD_FUNCTION("axon::all_gather_matmul", std::vector<c10::IValue>{x});
  const BelowAutograd below;
  const std::vector<int64_t> sizes(static_cast<size_t>(backend->getSize()), x.size(0));
  GatheredProducts products = run(AllGatherMatmul{.backend = *backend,
                                                  .rows = {sizes, backend->getRank()},
                                                  .x = {.values = x, .scales = {}},
                                                  .weights = std::move(factors),
                                                  .returns_gathered = return_gathered});
  return std::tuple(std::move(products.gathered), std::move(products.outputs));
}

std::optional<at::Tensor> matmul_reduce_scatter_at_once(const at::Tensor& x, const at::Tensor& weight,
                                                        const std::optional<at::Tensor>& bias,
                                                        const std::string& reduce_op, const std::string& group_name) {
  const bool is_average = reduce_op == "avg";
  if (!is_ready(x) || !fits(x, weight, bias) || !(is_average || reduce_op == "sum")) return std::nullopt;
  const auto backend = backend_of(group_name, x);
  if (!backend || backend->is_coalescing() || x.size(0) % backend->getSize() != 0) return std::nullopt;
  RECORD_FUNCTION("axon::matmul_reduce_scatter", std::vector<c10::IValue>{x});
  const BelowAutograd below;
  const std::vector<int64_t> sizes(static_cast<size_t>(backend->getSize()), x.size(0) / backend->getSize());
  return run(MatmulReduceScatter{.backend = *backend,
                                 .rows = {sizes, backend->getRank()},
                                 .x = {.values = x, .scales = {}},
                                 .weight = weight_of(weight, bias),
                                 .reduction = is_average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM});
}

}  // namespace axon::fused
