// Blocks of local and of remote memory that many transfers move, each by its number: no work for each block beyond one
// addition to the transfer.
//
//   Result<TransferPlan> plan = TransferPlan::make({.memory = parts, .layout = {.num_bytes = 4096, .count = 1024}},
//                                                  {.memory = remote, .layout = {.num_bytes = 4096, .count = 1024}});
//   auto transfer = Counted<Transfer>::adopt(*new Transfer(Transfer::Kind::kRead, connection));
//   AXON_TRY(plan.value().add_to(*transfer, local_ids, remote_ids));   // and keep() the local memory
//
// Constant; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/buffer.hpp"
#include "rpc/core/one_sided/transfer.hpp"

namespace axon::rpc {

// Blocks of equal length at equal distances. Block i begins at offset + i * stride.
struct BlockLayout {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;  // of each block; at least 1
  uint64_t stride = 0;     // at least num_bytes
  uint64_t count = 0;
};

class TransferPlan {
 public:
  struct Local {
    std::span<const Buffer> memory;  // parts, whose bytes are numbered one after the other
    BlockLayout layout;
  };
  struct Remote {
    std::shared_ptr<RemoteMemory> memory;  // shared with transfers
    uint64_t offset = 0;                   // the part of the memory in which the blocks lie
    uint64_t num_bytes = 0;
    BlockLayout layout;
  };

  // Fails if blocks exceed their memory, cross the end of a local part, or differ in length.
  static Result<TransferPlan> make(const Local& local, Remote remote);

  const std::shared_ptr<RemoteMemory>& remote() const noexcept { return remote_.memory; }

  // Adds the blocks, in pairs, to a transfer that is not started yet. Fails, and leaves the transfer unusable, if the
  // numbers of ids differ, or one is out of range.
  Status add_to(Transfer& transfer, std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids) const;
  // The same for another use: calls add(offset in the remote memory, local buffer) for each pair.
  template <typename Add>
  Status for_each(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids, Add add) const {
    AXON_TRY(check_ids(local_ids, remote_ids));
    const BlockLayout& layout = remote_.layout;
    for (size_t i = 0; i < local_ids.size(); ++i) {
      const auto remote = static_cast<uint64_t>(remote_ids[i]);
      add(remote_.offset + layout.offset + remote * layout.stride,
          Buffer{.data = local_[static_cast<size_t>(local_ids[i])], .num_bytes = layout.num_bytes});
    }
    return {};
  }

 private:
  Status check_ids(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids) const;

  TransferPlan(std::vector<std::byte*> local, Remote remote) : local_(std::move(local)), remote_(std::move(remote)) {}

  std::vector<std::byte*> local_;  // where each block begins
  Remote remote_;
};

}  // namespace axon::rpc
