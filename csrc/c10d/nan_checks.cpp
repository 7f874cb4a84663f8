#include "c10d/nan_checks.hpp"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "c10d/cuda_side.hpp"
#include "python/shape_text.hpp"
#include "python/tensor_memory.hpp"

namespace axon::c10d_backend {

namespace {

// Returns the elements as a type whose maximum torch can compute. The result is undefined if the tensor has no
// elements, or its type no NaN.
at::Tensor real_elements(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  if (tensor.is_complex()) return at::view_as_real(tensor.resolve_conj());
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return tensor;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2fnuz:
    case at::kFloat8_e8m0fnu:
      return tensor.to(at::kFloat);
    default:
      return {};
  }
}

bool is_captured(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return false;
  return is_capturing(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

std::string describe(const CheckedInput& input, size_t index, int rank) {
  return std::string(input.operation) + ": input " + std::to_string(index) + " of rank " + std::to_string(rank) + " (" +
         std::string(c10::getDtypeNames(input.tensor.scalar_type()).first) + python::text_of(input.tensor.sizes()) +
         ") contains NaN";
}

}  // namespace

bool are_nan_checks_on() {
  return c10d::getCvarString({"TORCH_DIST_NAN_CHECK"}, "0") == "1";
}

void refuse_nans(const std::vector<CheckedInput>& inputs, int rank) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const python::BelowPython no_subclass;
  std::vector<at::Tensor> results;
  std::vector<size_t> indices;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor elements = real_elements(inputs[i].tensor);
    if (!elements.defined()) continue;
    results.push_back(at::amax(elements).isnan());
    indices.push_back(i);
  }
  if (results.empty()) return;
  if (is_captured(results.front())) {
    for (size_t k = 0; k < results.size(); ++k) {
      at::_assert_async(results[k].logical_not(), describe(inputs[indices[k]], indices[k], rank));
    }
    return;
  }
  const at::Tensor has_nan = at::stack(results).cpu();
  for (size_t k = 0; k < results.size(); ++k) {
    if (!has_nan.const_data_ptr<bool>()[k]) continue;
    C10_THROW_ERROR(Error, describe(inputs[indices[k]], indices[k], rank) +
                               ", so this rank has not started the call; allowed while TORCH_DIST_NAN_CHECK is 1: "
                               "inputs without NaN");
  }
}

}  // namespace axon::c10d_backend
