// CUDA tensors between processes of one host: read where they lie, once the receiver has said that it can.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/connection.hpp"

namespace axon {

// GPUs of this process are told apart by a bit each: none for a tensor on the host, nor beyond the 64th.
inline uint64_t gpu_bit(const at::Tensor& tensor) {
  return tensor.is_cuda() && tensor.get_device() < 64 ? uint64_t{1} << tensor.get_device() : 0;
}

// Where a contiguous tensor of this process lies. Nothing if peers cannot map it.
std::optional<Whereabouts> lend(const at::Tensor& tensor);
// A message that lends tensors of this GPU leaves once its current stream has made them.
void leave_behind_current_stream(Outbound& outbound, at::Device gpu);
// Throws std::runtime_error: what a capture has made holds nothing yet.
void check_not_captured(at::Device gpu);

// Copies a tensor that is lent, in the order of the current stream, and lets go of the loan behind that. A target on
// the host is waited for. Throws std::runtime_error where it cannot be read.
void borrow(Inbound::Tensor& lent, const at::Tensor& target);

// From now on processes of this host may read what this one lends, if anybody may.
void let_peers_read() noexcept;
// The UUIDs of the GPUs on which all GPUs of this process can read what that peer lends. None where it may not be read,
// or AXON_TRANSPORTS does not name CUDA, as below.
std::vector<std::string> gpus_readable_of(const Connection& peer);

// To a peer of this host: it may lend tensors on these, and no others, from now on.
void tell_readable_gpus(const std::shared_ptr<Connection>& peer, const std::vector<std::string>& uuids);
// Which of this process's GPUs have these UUIDs: a bit each.
uint64_t own_gpus_among(const std::vector<std::string>& uuids);

}  // namespace axon
