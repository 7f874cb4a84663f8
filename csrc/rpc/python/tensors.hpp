// Packs and unpacks torch tensors of messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "rpc/core/inbound.hpp"
#include "rpc/core/outbound.hpp"

namespace axon::rpc {
class Connection;
}  // namespace axon::rpc

namespace axon::rpc_python {

// Adds the tensor to a message, which keeps it alive. Copies it if it is not contiguous, or neither on the host nor on
// one of the `exposable` GPUs (one bit each). Only for tensors that have memory (python/tensor_memory.hpp).
size_t add_tensor(rpc::Outbound& outbound, const at::Tensor& tensor, uint64_t exposable);

// Keeps the memory of a tensor, even if the tensor gets other memory in the meantime (`parameter.data = ...`, as
// Module.to() does).
Owner owner_of_memory(const at::Tensor& tensor);

// Keeps a destination tensor, which is returned as the same Python object, and its present memory.
Owner owner_of(at::Tensor tensor);

// Returns a received tensor. If the receiver gave a destination, it is that tensor. Otherwise it is a tensor on the
// host, which takes over the received memory or copies data from the header frame. An exposed tensor is copied to
// `device`.
at::Tensor take_tensor(rpc::Inbound::Tensor& received, c10::Device device, const rpc::Connection& peer);

// Returns the type of an announced tensor; empty if this torch version does not have it.
std::optional<at::ScalarType> type_of(uint8_t dtype) noexcept;

}  // namespace axon::rpc_python
