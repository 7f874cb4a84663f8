// Blocks of local and of remote memory that many transfers move, each by its number: no work for each block beyond one
// addition to the transfer.
//
//   Result<TransferPlan> plan = TransferPlan::make(std::move(local_blocks), std::move(remote_blocks));
//   auto transfer = Counted<Transfer>::adopt(*new Transfer(Transfer::Kind::kRead, connection));
//   AXON_TRY(plan.value().add_to(*transfer, local_ids, remote_ids));   // and keep() the local memory
//
// Neighbours that are neighbours on both sides move as one block.
//
// Constant; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rpc/core/one_sided/block_lists.hpp"
#include "rpc/core/one_sided/transfer.hpp"

namespace axon::rpc {

class TransferPlan {
 public:
  // Fails if both sides have blocks of one length, and these differ.
  static Result<TransferPlan> make(LocalBlocks local, RemoteBlocks remote);

  const LocalBlocks& local() const noexcept { return local_; }
  const RemoteBlocks& remote() const noexcept { return remote_; }

  // Fails if the numbers of ids differ, one is out of range, or two blocks of a pair differ in length.
  Status check(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids) const;
  // Returns the remote memories of these blocks, each once. After check().
  std::vector<std::shared_ptr<RemoteMemory>> memories_of(std::span<const int32_t> remote_ids) const;
  // Adds the blocks, in pairs, to a transfer that is not started yet. Fails as check() does, and adds nothing then.
  Status add_to(Transfer& transfer, std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids) const;
  // The same after check().
  void add_checked_to(Transfer& transfer, std::span<const int32_t> local_ids,
                      std::span<const int32_t> remote_ids) const;
  // The same for another use, after check(): calls add(remote memory, offset in it, local block) for each run of
  // neighbours.
  template <typename Add>
  void for_each(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids, Add add) const {
    LocalBlocks::Block here;
    RemoteBlocks::Block there;
    for (size_t i = 0; i < local_ids.size(); ++i) {
      const LocalBlocks::Block& local = local_[static_cast<size_t>(local_ids[i])];
      const RemoteBlocks::Block& remote = remote_[static_cast<size_t>(remote_ids[i])];
      const bool is_neighbour = here.num_bytes != 0 && here.is_followed_by(local) && there.memory == remote.memory &&
                                there.offset + here.num_bytes == remote.offset;
      if (is_neighbour) {
        here.num_bytes += local.num_bytes;
        continue;
      }
      if (here.num_bytes != 0) add(remote_.memory_of(there), there.offset, here);
      here = local;
      there = remote;
    }
    if (here.num_bytes != 0) add(remote_.memory_of(there), there.offset, here);
  }

 private:
  TransferPlan(LocalBlocks local, RemoteBlocks remote) noexcept
      : local_(std::move(local)), remote_(std::move(remote)) {}

  LocalBlocks local_;
  RemoteBlocks remote_;
};

}  // namespace axon::rpc
