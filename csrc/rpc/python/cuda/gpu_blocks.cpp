#include "rpc/python/cuda/gpu_blocks.hpp"

#include <algorithm>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/denials.hpp"

namespace axon::rpc_python {

Status GpuUses::begin(const std::shared_ptr<rpc::RemoteMemory>& remote, rpc::Transfer::Kind kind) {
  const auto wanted = kind == rpc::Transfer::Kind::kWrite ? rpc::Access::kWrite : rpc::Access::kRead;
  if (!rpc::allows(remote->access(), wanted)) return rpc::handle_allows_only(remote->region(), remote->access());
  if (!remote->connection()->one_sided().initiator().begin_use(*remote)) return rpc::region_is_closed(remote->region());
  begun_.push_back(remote);
  return Status();
}

void GpuUses::end() noexcept {
  for (const std::shared_ptr<rpc::RemoteMemory>& remote : std::exchange(begun_, {})) {
    remote->connection()->one_sided().initiator().end_use(*remote);
  }
}

std::byte* Addresses::begin_of(const rpc::RemoteMemory& remote, size_t extent) {
  const std::pair key(&remote, extent);
  if (key == latest_) return latest_begin_;
  const auto [known, is_new] = begins_.try_emplace(key);
  if (is_new) {
    Result<std::byte*> begin = mapping_of(remote).find(copier_, extent);
    begin.ok() ? void(known->second = begin.value()) : void(status_ = std::move(begin.status()));
  }
  latest_ = key;
  return latest_begin_ = known->second;
}

void Addresses::add(const GpuBlock& block) {
  std::byte* const there = begin_of(*block.remote, block.extent) + block.begin;
  found_.push_back(writes_ ? kernels::BlockCopy{.source = block.local, .target = there, .num_bytes = block.num_bytes}
                           : kernels::BlockCopy{.source = there, .target = block.local, .num_bytes = block.num_bytes});
}

void Addresses::add(const rpc::RemoteMemory& remote, uint64_t offset, Buffer local) {
  for_each_extent(remote, offset, local, [&](const GpuBlock& block) { add(block); });
}

}  // namespace axon::rpc_python
