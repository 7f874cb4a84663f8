// CUDA tensors between processes of one host: read where they lie, once the receiver has said that it can.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/connection.hpp"

namespace axon {

// Smaller ones go through the host with the call itself.
inline constexpr size_t kLeastLentNumBytes = 4097;

// Where a contiguous tensor of this process lies, once its current stream has made it. Nothing if peers cannot map it.
std::optional<Whereabouts> lend(const at::Tensor& tensor);

// Copies a tensor that is lent, in the order of the current stream, and lets go of the loan behind that. A target on
// the host is waited for. Throws std::runtime_error where it cannot be read.
void borrow(Inbound::Tensor& lent, const at::Tensor& target);

// The UUIDs of the GPUs whose memory all GPUs of this process can read. None where AXON_TRANSPORTS does not name CUDA,
// as below.
std::vector<std::string> readable_gpus();

// To a peer of this host: it may lend tensors on these, and no others, from now on.
void tell_readable_gpus(const std::shared_ptr<Connection>& peer, const std::vector<std::string>& uuids);
// Which of this process's GPUs have these UUIDs: a bit each.
uint64_t own_gpus_among(const std::vector<std::string>& uuids);

}  // namespace axon
