#include "rpc/python/cuda/gpu_blocks.hpp"

#include <algorithm>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/denials.hpp"

namespace axon::rpc_python {

Status GpuUses::begin(const std::shared_ptr<rpc::RemoteMemory>& remote, rpc::Transfer::Kind kind) {
  const auto wanted = kind == rpc::Transfer::Kind::kWrite ? rpc::Access::kWrite : rpc::Access::kRead;
  if (!rpc::allows(remote->access(), wanted)) return rpc::handle_allows_only(remote->region(), remote->access());
  if (std::ranges::find(begun_, remote) != begun_.end()) return Status();
  if (!remote->connection()->one_sided().initiator().begin_use(*remote)) return rpc::region_is_closed(remote->region());
  begun_.push_back(remote);
  return Status();
}

void GpuUses::end() noexcept {
  for (const std::shared_ptr<rpc::RemoteMemory>& remote : std::exchange(begun_, {})) {
    remote->connection()->one_sided().initiator().end_use(*remote);
  }
}

Result<ipc::BlockCopier::Blocks> addresses_of(ipc::BlockCopier& copier, const std::vector<GpuBlock>& blocks,
                                              rpc::Transfer::Kind kind) {
  ipc::BlockCopier::Blocks found;
  found.reserve(blocks.size());
  const rpc::RemoteMemory* remote = nullptr;
  size_t extent = 0;
  std::byte* base = nullptr;  // of this extent
  for (const GpuBlock& block : blocks) {
    if (block.remote != remote || block.extent != extent) {
      Result<std::byte*> begin = mapping_of(*block.remote).find(copier, block.extent);
      if (!begin.ok()) return std::move(begin.status());
      remote = block.remote;
      extent = block.extent;
      base = begin.value();
    }
    std::byte* const there = base + block.begin;
    found.push_back(kind == rpc::Transfer::Kind::kWrite
                        ? kernels::BlockCopy{.source = block.local, .target = there, .num_bytes = block.num_bytes}
                        : kernels::BlockCopy{.source = there, .target = block.local, .num_bytes = block.num_bytes});
  }
  return found;
}

}  // namespace axon::rpc_python
