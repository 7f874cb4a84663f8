// Checks whether a tensor's elements are at its data pointer. Tensor subclasses, fake tensors and tensors with freed
// storage report a device, a shape and a size. Their data pointer is null, however, or their memory too short.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <string>

namespace axon::python {

// Returns whether all elements lie in strided memory of the host or of a GPU. Cheap enough for every call.
bool has_memory(const at::Tensor& tensor);

// Returns the reason if has_memory() is false, as the predicate of a sentence about the tensor ("has layout Sparse").
std::optional<std::string> lack_of_memory(const at::Tensor& tensor);

// The allowed tensors, for errors.
inline constexpr const char* kAllowedTensors =
    "strided tensors with memory of their own on the CPU or on CUDA; of a DTensor its to_local() or full_tensor()";

// While it lives, operations access a tensor's memory directly: no dispatch mode (such as FakeTensorMode) and no
// subclass sees or replaces them.
class BelowPython {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::python_ks};
};

}  // namespace axon::python
