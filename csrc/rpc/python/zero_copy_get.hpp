// CUDA tensors between processes of one host: read where they lie, once the receiver has said that it can.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

// GPUs of this process are told apart by a bit each: none for a tensor on the host, nor beyond the 64th.
inline uint64_t gpu_bit(const at::Tensor& tensor) {
  return tensor.is_cuda() && tensor.get_device() < 64 ? uint64_t{1} << tensor.get_device() : 0;
}

// The driver may take its time: Python's lock is not to be held in calls of what is here, but for the checks and what
// asks peers.

// The sender

// From now on processes of this host may read what this one exposes, if anybody may.
void let_peers_read() noexcept;
// Where a contiguous tensor of this process lies. Nothing if peers cannot map it.
std::optional<rpc::MemoryHandle> expose(const at::Tensor& tensor);
// A message that exposes tensors of this GPU leaves once its current stream has made them.
void leave_after_current_stream(rpc::Outbound& outbound, at::Device gpu);
// Throws std::runtime_error: what a capture has made holds nothing yet.
void check_not_captured(at::Device gpu);
// Which of this process's GPUs have these UUIDs: a bit each.
uint64_t own_gpus_among(const std::vector<std::string>& uuids);

// The receiver

// What was exposed cannot be read where it lies; others may be.
class NotReadable final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Copies a tensor that is exposed, in the order of the current stream, and lets go of the exposure behind that. A
// target on the host is waited for. Throws NotReadable, or std::runtime_error.
void read_exposed(rpc::Inbound::Tensor& exposed, const at::Tensor& target, const rpc::Connection& peer);

// A tensor has come on this GPU: its sender hears once that it may expose. None but those of this host do.
void ask_to_expose(const std::shared_ptr<rpc::Connection>& peer, at::Device gpu);
// That did not do: it is to expose none, and is asked again in some seconds at the earliest.
void ask_not_to_expose(const std::shared_ptr<rpc::Connection>& peer);
// The UUIDs of the GPUs on which all GPUs of this process can read what that peer exposes. None where it may not be
// read, or AXON_TRANSPORTS does not name CUDA, as for the sender.
std::vector<std::string> gpus_readable_of(const rpc::Connection& peer);

}  // namespace axon::rpc_python
