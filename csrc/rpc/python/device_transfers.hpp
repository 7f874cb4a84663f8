// One-sided transfers of CUDA tensors: exposing them, mapping those of peers, and moving blocks by GPUs.
//
//   specification.device = expose_on_gpu(gpu, specification.extents);   // the owner
//   map_remote(remote, current_gpu());                                  // the initiator, once it has opened a handle
//   if (needs_device(*remote, gpu)) blocks.push_back({remote.get(), offset, local, gpu});
//   add_device_blocks(transfer, blocks, std::move(owners), {});
//
// Driver calls may be slow: call these functions without the GIL, except where noted. A build without CUDA refuses CUDA
// tensors.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "rpc/core/one_sided/one_sided.hpp"
#include "rpc/python/local_memory.hpp"

namespace axon::rpc_python {

// Waits until the work that the current stream holds has made the memory. Throws std::invalid_argument if there is no
// such GPU, and std::runtime_error during a capture, or if the GPU fails.
rpc::DeviceRegion expose_on_gpu(c10::Device gpu, const std::vector<rpc::Extent>& extents);

// Maps memory of a peer's GPU for this GPU, if it can be mapped: Remote.path says so afterwards. Does nothing for
// memory of hosts. Call it before another thread uses the memory.
void map_remote(const std::shared_ptr<rpc::RemoteMemory>& remote, c10::DeviceIndex gpu) noexcept;
// The current GPU of this thread.
c10::DeviceIndex current_gpu() noexcept;

// A block of a transfer that a GPU moves, since its memory here or there is that of a GPU.
struct DeviceBlock {
  rpc::RemoteMemory* remote = nullptr;  // the caller keeps it until the transfer does
  uint64_t offset = 0;
  Buffer local;
  c10::DeviceIndex gpu = -1;  // −1: local memory of the host
};

// Returns whether a GPU of this process moves the block; otherwise Transfer::add() takes it. With the GIL, too.
inline bool needs_device(const rpc::RemoteMemory& remote, c10::DeviceIndex gpu) noexcept {
  return gpu >= 0 || remote.mapping() != nullptr;
}

// Adds the blocks to the transfer, which must be started then. `owners` keep their local memory. GPUs move them after
// the work that the stream holds now, or the current stream of each GPU. Throws std::runtime_error during a capture, or
// if a GPU fails; then nothing moves.
void add_device_blocks(rpc::Transfer& transfer, const std::vector<DeviceBlock>& blocks, std::vector<Owner> owners,
                       std::optional<c10::Stream> stream);

// Returns whether this GPU copies between its memory and that of the peers by itself.
bool copies_directly(c10::DeviceIndex gpu, std::span<const std::shared_ptr<rpc::RemoteMemory>> remotes);

// Blocks between memory of one GPU and memory of peers. `list` calls its argument for each of them; it is called within
// add_direct_blocks(), perhaps more than once.
struct ListedBlocks {
  using Add = std::function<void(const rpc::RemoteMemory&, uint64_t offset, Buffer local)>;
  c10::DeviceIndex gpu = -1;
  std::span<const std::shared_ptr<rpc::RemoteMemory>> remotes;  // of the blocks; copies_directly() is true for them
  size_t most = 0;                                              // blocks
  std::function<void(const Add&)> list;
};

// Does what add_device_blocks() does, with less work for each block. The transfer uses the remotes already.
void add_direct_blocks(rpc::Transfer& transfer, const ListedBlocks& blocks, Owner owner,
                       std::optional<c10::Stream> stream);

}  // namespace axon::rpc_python
