#include "python/tensor_memory.hpp"
#include "python/shape_text.hpp"

#include <ATen/EmptyTensor.h>

namespace axon::python {

static bool is_strided(const at::Tensor& tensor) {
  return !tensor.is_nested() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         (tensor.is_cpu() || tensor.is_cuda());
}

// Without the checks of Tensor::data_ptr(), which throws for some tensors without memory.
static const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return impl->has_symbolic_sizes_strides() ? nullptr : impl->unsafe_storage().unsafeGetStorageImpl();
}

// Returns the bytes of the storage up to the end of the last element.
static size_t extent_of(const at::Tensor& tensor) {
  const auto offset = static_cast<size_t>(tensor.storage_offset());
  if (tensor.is_contiguous()) return (offset + static_cast<size_t>(tensor.numel())) * tensor.element_size();
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(), offset);
}

static size_t length_of(const c10::StorageImpl& storage) {
  return static_cast<size_t>(storage.sym_nbytes().maybe_as_int().value_or(0));
}

static const void* data_of(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
}

bool has_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_strided(tensor)) return false;
  const c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr) return false;
  return tensor.numel() == 0 || (data_of(*storage) != nullptr && extent_of(tensor) <= length_of(*storage));
}

static std::string what_is_not_strided(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "is a nested tensor";
  if (tensor.layout() != at::kStrided) return "has layout " + text_of(tensor.layout());
  if (tensor.is_quantized()) return "is quantized";
  return "is on " + tensor.device().str();
}

std::optional<std::string> lack_of_memory(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is an undefined tensor";
  if (!is_strided(tensor)) return what_is_not_strided(tensor);
  if (has_memory(tensor)) return std::nullopt;
  const c10::StorageImpl* const storage = storage_of(tensor);
  const size_t length = storage == nullptr ? 0 : length_of(*storage);
  if (storage == nullptr || (length != 0 && data_of(*storage) == nullptr)) {
    return "has no memory of its own (a subclass that wraps other tensors, a fake tensor, a tensor inside of vmap())";
  }
  if (length == 0) return "has lost its memory (its storage was resized to 0 bytes, as FSDP frees sharded parameters)";
  return "reaches to byte " + std::to_string(extent_of(tensor)) + " of a storage that was resized to " +
         std::to_string(length) + " bytes";
}

}  // namespace axon::python
