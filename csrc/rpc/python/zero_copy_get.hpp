// Zero-copy get of CUDA tensors between processes of one host: the receiver reads a tensor in place, after it has told
// the sender that it can.
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

// Returns the GPU's bit in a mask of this process's GPUs. There is no bit for a tensor on the host, or from GPU 64 on.
inline uint64_t gpu_bit(const at::Tensor& tensor) {
  return tensor.is_cuda() && tensor.get_device() < 64 ? uint64_t{1} << tensor.get_device() : 0;
}

// Driver calls may be slow: call these functions without the GIL, except for the checks and the messages to peers.

// The sender

// From now on processes of this host may read what this one exposes, if that is allowed at all.
void let_peers_read() noexcept;
// Returns the location of a contiguous tensor of this process; empty if peers cannot map it.
std::optional<rpc::MemoryHandle> expose(const at::Tensor& tensor);
// Delays a message that exposes tensors of this GPU until its current stream has produced them.
void leave_after_current_stream(rpc::Outbound& outbound, at::Device gpu);
// Throws std::runtime_error during a capture, because captured work has not produced any data yet.
void check_not_captured(at::Device gpu);
// Returns the GPUs of this process that have these UUIDs, one bit each.
uint64_t own_gpus_among(const std::vector<std::string>& uuids);

// The receiver

// An exposed tensor cannot be read in place; other tensors may be readable.
class NotReadable final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Copies an exposed tensor on the current stream, and acknowledges it after the copy. Waits for the copy if the target
// is on the host. Throws NotReadable, or std::runtime_error.
void read_exposed(rpc::Inbound::Tensor& exposed, const at::Tensor& target, const rpc::Connection& peer);

// Call it when a tensor has arrived on this GPU: it tells the sender once that it may expose tensors. Only for senders
// on this host.
void ask_to_expose(rpc::Connection& peer, at::Device gpu);
// Call it when reading has failed: it tells the sender not to expose tensors. The sender is asked again after some
// seconds at the earliest.
void ask_not_to_expose(rpc::Connection& peer);
// Returns the UUIDs of the GPUs on which all GPUs of this process can read what that peer exposes. Empty if the peer's
// memory cannot be read, or AXON_TRANSPORTS does not name CUDA, as for the sender.
std::vector<std::string> gpus_readable_of(const rpc::Connection& peer);

}  // namespace axon::rpc_python
