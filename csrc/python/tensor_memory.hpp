// Whether a tensor's elements lie where its data pointer says. Tensor subclasses, fake tensors and tensors whose
// storage was freed report a device, a shape and a size as any other, but their data pointer is null or too short.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <string>

namespace axon::python {

// Returns whether all elements lie in strided memory of the host or of a GPU. Cheap enough for every call.
bool has_memory(const at::Tensor& tensor);

// Returns why not, as the predicate of a sentence about the tensor ("has layout Sparse"); nothing if has_memory().
std::optional<std::string> lack_of_memory(const at::Tensor& tensor);

// What errors name as allowed.
inline constexpr const char* kAllowedTensors =
    "strided tensors with memory of their own on the CPU or on CUDA; of a DTensor its to_local() or full_tensor()";

// While it lives, operations reach a tensor's memory itself: no dispatch mode (such as FakeTensorMode) and no subclass
// sees or replaces them.
class BelowPython {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::python_ks};
};

}  // namespace axon::python
