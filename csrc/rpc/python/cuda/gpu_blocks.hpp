// Blocks of a transfer between local memory and memory of a peer's GPU that is mapped here.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "memory/buffer.hpp"
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

// Cuts a block at the ends of extents: calls add(GpuBlock) for each part.
template <typename Add>
void for_each_extent(const rpc::RemoteMemory& remote, uint64_t offset, Buffer local, Add add) {
  while (local.num_bytes != 0) {
    const size_t extent = remote.extent_at(offset);
    const uint64_t begin = offset - remote.begin_of(extent);
    const uint64_t length = std::min<uint64_t>(local.num_bytes, remote.extents()[extent].num_bytes - begin);
    add(GpuBlock{.remote = &remote, .extent = extent, .begin = begin, .local = local.data, .num_bytes = length});
    local = local.slice(length, local.num_bytes - length);
    offset += length;
  }
}

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

// Finds the addresses of blocks for a GPU. Use it within BlockCopier::Request::fill.
//
//   Addresses addresses(copier, kind, blocks.size());
//   for (const GpuBlock& block : blocks) addresses.add(block);
//   return std::move(addresses).take();
class Addresses {
 public:
  Addresses(ipc::BlockCopier& copier, rpc::Transfer::Kind kind, size_t num_expected)
      : copier_(copier), writes_(kind == rpc::Transfer::Kind::kWrite) {
    found_.reserve(num_expected);
  }
  void add(const GpuBlock& block);
  // Adds a block that may lie in several extents.
  void add(const rpc::RemoteMemory& remote, uint64_t offset, Buffer local);
  // Fails if memory of a peer is not mapped.
  Result<ipc::BlockCopier::Blocks> take() && {
    if (!status_.ok()) return std::move(status_);
    return std::move(found_);
  }

 private:
  std::byte* begin_of(const rpc::RemoteMemory& remote, size_t extent);

  ipc::BlockCopier& copier_;
  const bool writes_;
  std::map<std::pair<const rpc::RemoteMemory*, size_t>, std::byte*> begins_;  // of extents
  std::pair<const rpc::RemoteMemory*, size_t> latest_{};                      // the extent of the block before …
  std::byte* latest_begin_ = nullptr;                                         // … and where it begins
  ipc::BlockCopier::Blocks found_;
  Status status_;
};

inline CudaMapping& mapping_of(const rpc::RemoteMemory& remote) noexcept {
  return static_cast<CudaMapping&>(*remote.mapping());
}

}  // namespace axon::rpc_python
