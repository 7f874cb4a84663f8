// Torch's tensors as messages have them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "rpc/core/inbound.hpp"
#include "rpc/core/outbound.hpp"

namespace axon::rpc {
class Connection;
}  // namespace axon::rpc

namespace axon::rpc_python {

// Adds it to a message, which keeps it alive. Makes a copy where it is not contiguous, or neither on the host nor on
// one of the `exposable` GPUs (a bit each). Only for tensors that have memory (python/tensor_memory.hpp).
size_t add_tensor(rpc::Outbound& outbound, const at::Tensor& tensor, uint64_t exposable);

// Keeps a tensor that is handed out, which comes back as the same object of Python's, and its present memory.
Owner owner_of(at::Tensor tensor);

// A tensor that has come: the one that was handed out for it; else one on the host, which takes the memory that it lies
// in, or copies what lies in the header frame; or of one that is exposed, a copy on `device`.
at::Tensor take_tensor(rpc::Inbound::Tensor& received, c10::Device device, const rpc::Connection& peer);

// Of a tensor that is announced; nothing for a type that this torch does not have.
std::optional<at::ScalarType> type_of(uint8_t dtype) noexcept;

}  // namespace axon::rpc_python
