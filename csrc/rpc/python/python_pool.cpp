#include "rpc/python/python_pool.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "python/gil.hpp"
#include "python/tensor_memory.hpp"
#include "rpc/python/tensors.hpp"

namespace axon::rpc_python {

std::shared_ptr<rpc::MemoryPool> make_pool(size_t max_num_bytes, bool is_pinned) {
  const auto source = [is_pinned](size_t num_bytes) -> rpc::PoolMemory {
    const auto options = at::TensorOptions(at::kByte).device(at::kCPU).pinned_memory(is_pinned);
    const at::Tensor tensor = at::empty({static_cast<int64_t>(num_bytes)}, options);
    return {{static_cast<std::byte*>(tensor.mutable_data_ptr()), num_bytes}, owner_of_memory(tensor)};
  };
  return std::make_shared<rpc::MemoryPool>(max_num_bytes, source);
}

std::optional<at::Tensor> take_tensor_from(rpc::MemoryPool& pool, at::ScalarType type, at::IntArrayRef shape) {
  const python::GilReleased no_gil;
  const python::BelowPython no_modes;
  const auto options = at::TensorOptions(type).device(at::kCPU);
  const auto num_bytes = static_cast<size_t>(c10::multiply_integers(shape)) * options.dtype().itemsize();
  if (num_bytes == 0) return at::empty(shape, options);
  rpc::PoolMemory memory = pool.take(num_bytes);
  if (memory.bytes.empty()) return std::nullopt;
  auto* const owner = new Owner(std::move(memory.owner));
  return at::from_blob(memory.bytes.data(), shape, [owner](void*) { delete owner; }, options);
}

}  // namespace axon::rpc_python
