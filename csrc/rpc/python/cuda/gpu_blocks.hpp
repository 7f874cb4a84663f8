// Blocks of a transfer between local memory and memory of a peer's GPU that is mapped here.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rpc/core/one_sided/transfer.hpp"
#include "rpc/python/cuda/cuda_mapping.hpp"

namespace axon::rpc_python {

// A block that lies within one extent of the peer's memory.
struct GpuBlock {
  const rpc::RemoteMemory* remote = nullptr;
  size_t extent = 0;
  uint64_t begin = 0;  // in the extent
  std::byte* local = nullptr;
  uint64_t num_bytes = 0;

  GpuBlock from(uint64_t at, uint64_t length) const {
    return {.remote = remote, .extent = extent, .begin = begin + at, .local = local + at, .num_bytes = length};
  }
};

// What a transfer uses of peers' memory, from its start until nothing moves any more.
class GpuUses {
 public:
  // Any thread. Fails if the grant does not allow that, the memory is revoked, or the connection has ended.
  Status begin(const std::shared_ptr<rpc::RemoteMemory>& remote, rpc::Transfer::Kind kind);
  // Progress owner only.
  void end() noexcept;

 private:
  std::vector<std::shared_ptr<rpc::RemoteMemory>> begun_;  // shared with the transfer and others
};

// Returns the addresses of the blocks for this GPU. Call it within BlockCopier::Request::fill.
Result<ipc::BlockCopier::Blocks> addresses_of(ipc::BlockCopier& copier, const std::vector<GpuBlock>& blocks,
                                              rpc::Transfer::Kind kind);

inline CudaMapping& mapping_of(const rpc::RemoteMemory& remote) noexcept {
  return static_cast<CudaMapping&>(*remote.mapping());
}

}  // namespace axon::rpc_python
