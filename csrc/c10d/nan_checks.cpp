#include "c10d/nan_checks.hpp"

#include <torch/version.h>

#include "c10d/errors.hpp"

#ifdef C10D_BACKEND_HAS_HOOKS  // since 2.14

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/NanCheck.hpp>

#include "python/shape_text.hpp"
#include "python/tensor_memory.hpp"

namespace axon::c10d_backend {

using python::text_of;

namespace {

// Torch's own hooks for NaNs have this number and the following ones. A group has either those or ours. The flight
// recorder's have smaller numbers, so it has recorded the call that we refuse.
constexpr int64_t kHookId = 0x4e41'4e43;

const char* name_of(c10d::HookOpName name) noexcept {
  using Name = c10d::HookOpName;
  switch (name) {
    case Name::SEND:
      return "send";
    case Name::BROADCAST:
      return "broadcast";
    case Name::ALLREDUCE:
      return "all_reduce";
    case Name::REDUCE:
      return "reduce";
    case Name::ALLGATHER:
      return "all_gather";
    case Name::REDUCE_SCATTER:
      return "reduce_scatter";
    case Name::ALLTOALL:
      return "all_to_all";
    case Name::SCATTER:
      return "scatter";
    case Name::GATHER:
      return "gather";
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15  // before, these have the names above
    case Name::ALLREDUCE_COALESCED:
      return "all_reduce_coalesced";
    case Name::ALLGATHER_BASE:
      return "all_gather_into_tensor";
    case Name::ALLGATHER_COALESCED:
      return "all_gather_coalesced";
    case Name::ALLGATHER_INTO_TENSOR_COALESCED:
      return "all_gather_into_tensor_coalesced";
    case Name::REDUCE_SCATTER_BASE:
      return "reduce_scatter_tensor";
    case Name::REDUCE_SCATTER_TENSOR_COALESCED:
      return "reduce_scatter_tensor_coalesced";
    case Name::ALLTOALL_BASE:
      return "all_to_all_single";
#endif
    default:
      return "a call";
  }
}

// Returns the tensor's elements as torch's check reads them: real numbers without gaps. The result is undefined if its
// type has no NaN, or none that torch can find.
at::Tensor real_elements(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (tensor.is_sparse()) return real_elements(tensor._values());
  if (tensor.is_complex()) return at::view_as_real(tensor.resolve_conj().contiguous());
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return tensor.contiguous();
    default:
      return {};
  }
}

bool has_nan(const at::Tensor& elements) {
  try {
    c10d::checkForNan(elements);
    return false;
  } catch (const c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find("NaN found") == std::string_view::npos) throw;
    return true;
  }
}

// Outputs hold anything before the call. So do the tensors of ranks that only receive.
void check(const c10d::ProcessGroup& group, const c10d::PreHookArgs& call) {
  const bool only_root_sends = call.name == c10d::HookOpName::BROADCAST || call.name == c10d::HookOpName::SCATTER;
  if (only_root_sends && call.root != group.getRank()) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const python::BelowPython no_subclass;
  for (size_t i = 0; i < call.input_tensors.size(); ++i) {
    const at::Tensor elements = real_elements(call.input_tensors[i]);
    if (!elements.defined() || !has_nan(elements)) continue;
    const at::Tensor& tensor = call.input_tensors[i];
    const std::string shape = std::string(c10::getDtypeNames(tensor.scalar_type()).first) + text_of(tensor.sizes());
    C10_THROW_ERROR(Error, std::string(name_of(call.name)) + ": input " + std::to_string(i) + " of rank " +
                               std::to_string(group.getRank()) + " (" + shape +
                               ") contains NaN, so this rank has not started the call; allowed while "
                               "TORCH_DIST_NAN_CHECK is 1: inputs without NaN");
  }
}

}  // namespace

// The group owns the hook, which therefore refers to it without owning it.
void check_for_nans(c10d::ProcessGroup& group) {
  group.registerPreHook(kHookId, [&group](const c10d::PreHookArgs& call) { check(group, call); });
}

}  // namespace axon::c10d_backend

#else

namespace axon::c10d_backend {

void check_for_nans(c10d::ProcessGroup&) {
  throw_value_error("check_for_nans: torch calls no hooks before a group's calls; allowed: torch 2.14 and newer");
}

}  // namespace axon::c10d_backend

#endif
