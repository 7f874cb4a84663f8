#include "rpc/python/tensors.hpp"

#include <ATen/Functions.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/MaybeOwned.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/data_type.hpp"
#include "python/gil.hpp"
#include "python/tensor_memory.hpp"
#include "rpc/python/zero_copy_get.hpp"

namespace axon::rpc_python {

// From here on, numbers are torch's, for types without a number in the engine.
static constexpr uint8_t kTorchTypes = 128;

static constexpr std::array kTypes{
    std::pair{at::kBool, DataType::kBool},
    std::pair{at::kChar, DataType::kInt8},
    std::pair{at::kByte, DataType::kUint8},
    std::pair{at::kShort, DataType::kInt16},
    std::pair{at::kUInt16, DataType::kUint16},
    std::pair{at::kInt, DataType::kInt32},
    std::pair{at::kUInt32, DataType::kUint32},
    std::pair{at::kLong, DataType::kInt64},
    std::pair{at::kUInt64, DataType::kUint64},
    std::pair{at::kHalf, DataType::kFloat16},
    std::pair{at::kBFloat16, DataType::kBFloat16},
    std::pair{at::kFloat, DataType::kFloat32},
    std::pair{at::kDouble, DataType::kFloat64},
    std::pair{at::kComplexFloat, DataType::kComplex64},
    std::pair{at::kComplexDouble, DataType::kComplex128},
};

static uint8_t dtype_of(at::ScalarType type) noexcept {
  for (const auto& [torch_type, dtype] : kTypes) {
    if (torch_type == type) return static_cast<uint8_t>(dtype);
  }
  return static_cast<uint8_t>(kTorchTypes + static_cast<uint8_t>(type));
}

std::optional<at::ScalarType> type_of(uint8_t dtype) noexcept {
  for (const auto& [torch_type, ours] : kTypes) {
    if (static_cast<uint8_t>(ours) == dtype) return torch_type;
  }
  if (dtype < kTorchTypes || dtype >= kTorchTypes + static_cast<uint8_t>(at::ScalarType::NumOptions)) return {};
  const auto type = static_cast<at::ScalarType>(dtype - kTorchTypes);
  if (type == at::ScalarType::Undefined || c10::isQIntType(type)) return {};
  return type;
}

// Copies into pinned memory on the calling thread's current stream, and waits for it. So work that was enqueued earlier
// is included.
static at::Tensor from_device(const at::Tensor& source) {
  const python::GilReleased no_gil;
  const python::BelowPython no_modes;
  const at::NoGradGuard no_gradient;
  at::Tensor host = at::empty(source.sizes(), source.options().device(at::kCPU).pinned_memory(true));
  host.copy_(source, /*non_blocking=*/true);
  c10::impl::VirtualGuardImpl(at::kCUDA).getStream(source.device()).synchronize();
  return host;
}

using MaybeOwned = c10::MaybeOwned<at::Tensor>;

// Makes the tensor contiguous on its own device.
static MaybeOwned plain(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return MaybeOwned::borrowed(tensor);
  const python::GilReleased no_gil;
  const python::BelowPython no_subclass;
  return MaybeOwned::owned(tensor.detach().resolve_conj().resolve_neg().contiguous());
}

Owner owner_of_memory(const at::Tensor& tensor) {
  return {c10::Storage(tensor.storage()).unsafeReleaseStorageImpl(),
          [](void* held) { c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(held)); }};
}

static std::optional<rpc::MemoryHandle> expose_if_allowed(const at::Tensor& tensor, uint64_t exposable) {
  if ((gpu_bit(tensor) & exposable) == 0 || tensor.nbytes() == 0) return std::nullopt;
  const python::GilReleased no_gil;
  return expose(tensor);
}

size_t add_tensor(rpc::Outbound& outbound, const at::Tensor& tensor, uint64_t exposable) {
  MaybeOwned plain_tensor = plain(tensor);
  if (tensor.dim() > static_cast<int64_t>(rpc::kMostDimensions)) {
    throw pybind11::value_error("a tensor of " + std::to_string(tensor.dim()) +
                                " dimensions cannot be sent; allowed: up to " + std::to_string(rpc::kMostDimensions));
  }
  if (tensor.is_cuda()) check_not_captured(tensor.device());
  const std::optional<rpc::MemoryHandle> memory_handle = expose_if_allowed(*plain_tensor, exposable);
  if (!memory_handle && tensor.is_cuda()) plain_tensor = MaybeOwned::owned(from_device(*plain_tensor));
  const at::Tensor& sent = *plain_tensor;
  // Uses the mutable pointer: a write to a lazily cloned tensor moves it away from the memory of its const pointer.
  const rpc::TensorView view{.dtype = dtype_of(sent.scalar_type()),
                             .kind = tensor.is_cuda() ? MemoryKind::kCuda : MemoryKind::kHost,
                             .shape = {sent.sizes().data(), sent.sizes().size()},
                             .data = {static_cast<const std::byte*>(sent.mutable_data_ptr()), sent.nbytes()}};
  if (memory_handle) return outbound.expose(view, *memory_handle, owner_of_memory(sent));
  return outbound.add(view, owner_of_memory(sent));
}

namespace {

// A destination tensor and its memory, which it may lose in the meantime, as a tensor that is sent may.
struct HandedOut {
  at::Tensor tensor;
  c10::Storage memory;
};

}  // namespace

Owner owner_of(at::Tensor tensor) {
  c10::Storage memory = tensor.storage();
  return {new HandedOut{.tensor = std::move(tensor), .memory = std::move(memory)},
          [](void* held) { delete static_cast<HandedOut*>(held); }};
}

static at::Tensor tensor_of(const Owner& owner) {
  return static_cast<const HandedOut*>(owner.get())->tensor;
}

// If the destination was not received into directly, the received data is on the host.
static at::Tensor filled(const Owner& owner, const at::Tensor& source) {
  at::Tensor tensor = tensor_of(owner);
  if (!tensor.is_cpu()) {
    const python::GilReleased no_gil;
    const at::NoGradGuard no_gradient;
    tensor.copy_(source);
  }
  return tensor;
}

at::Tensor take_tensor(rpc::Inbound::Tensor& received, c10::Device device, const rpc::Connection& peer) {
  const std::optional<at::ScalarType> type = type_of(received.dtype);
  if (!type) throw pybind11::type_error("received a tensor of a type that this version of torch does not have");
  const at::IntArrayRef shape(received.shape.data(), received.shape.size());
  const at::TensorOptions options(*type);
  if (c10::multiply_integers(shape) * static_cast<int64_t>(options.dtype().itemsize()) !=
      static_cast<int64_t>(received.data.num_bytes)) {
    throw pybind11::value_error("received a tensor whose length does not match its shape");
  }
  if (received.location == rpc::TensorLocation::kExposed) {
    const python::GilReleased no_gil;
    at::Tensor tensor =
        received.owner.get() != nullptr ? tensor_of(received.owner) : at::empty(shape, options.device(device));
    read_exposed(received, tensor, peer);
    return tensor;
  }
  if (received.owner.get() != nullptr) {
    return filled(received.owner, at::from_blob(received.data.data, shape, options));
  }
  if (received.host_buffer) {
    auto* buffer = new HostBuffer(std::move(received.host_buffer));
    const auto give_back = [buffer](void*) { delete buffer; };
    return at::from_blob(buffer->data(), shape, give_back, options);
  }
  at::Tensor tensor = at::empty(shape, options);
  if (received.data.num_bytes != 0) {
    std::memcpy(tensor.mutable_data_ptr(), received.data.data, received.data.num_bytes);
  }
  return tensor;
}

}  // namespace axon::rpc_python
