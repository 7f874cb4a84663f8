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

}  // namespace

bool are_nan_checks_on() {
  return c10d::getCvarBool({"TORCH_DIST_NAN_CHECK"}, false);
}

void refuse_nans(const std::vector<Sent>& all, int rank) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const python::BelowPython no_subclass;
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor& tensor = all[i].tensor;
    const at::Tensor elements = real_elements(tensor);
    if (!elements.defined()) continue;
    const at::Tensor has_nan = at::amax(elements).isnan();
    const std::string call = std::string(all[i].operation) + ": input " + std::to_string(i) + " of rank " +
                             std::to_string(rank) + " (" + std::string(c10::getDtypeNames(tensor.scalar_type()).first) +
                             python::text_of(tensor.sizes()) + ") contains NaN";
    if (is_captured(tensor)) {
      at::_assert_async(has_nan.logical_not(), call);
    } else if (has_nan.item<bool>()) {
      C10_THROW_ERROR(Error, call +
                                 ", so this rank has not started the call; allowed while TORCH_DIST_NAN_CHECK is 1: "
                                 "inputs without NaN");
    }
  }
}

}  // namespace axon::c10d_backend
