// The initiator's direct copies: within this process, from another process of this host, and from or to memory of it
// that this process has mapped.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/copy_threads.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/denials.hpp"
#include "rpc/core/one_sided/initiator.hpp"

namespace axon::rpc {

bool Initiator::copies(const Transfer& transfer, const Transfer::Block& block) noexcept {
  const RemoteMemory::Path path = block.remote->path();
  return path == RemoteMemory::Path::kMemcpy || path == RemoteMemory::Path::kMapped ||
         (path == RemoteMemory::Path::kCma && transfer.kind_ == Transfer::Kind::kRead);
}

void Initiator::copy(Transfer& transfer) noexcept {
  using Direction = MemoryCopy::Direction;
  RemoteMemory& remote = *transfer.blocks_[transfer.next_].remote;
  if (remote.is_revoked) return finish(transfer, about(transfer, region_is_closed(remote.region())));
  const size_t first = transfer.next_;
  const auto outcome =
      remote.path() == RemoteMemory::Path::kCma
          ? copy_step(transfer, remote, reads_, connection_.engine().peers().pid_of(peer_),
                      DirectRead::FlagLocation{.address = remote.flag_address(), .value = remote.flag_value()})
          : copy_step(transfer, remote, copies_,
                      transfer.kind_ == Transfer::Kind::kRead ? Direction::kFromPeer : Direction::kToPeer,
                      remote.mapping_here());
  switch (outcome) {
    case CopyOutcome::kCopied:
      return;
    case CopyOutcome::kRevoked:
      return finish(transfer, about(transfer, region_is_closed(remote.region())));
    case CopyOutcome::kGone:
      return finish(transfer, about(transfer, Status(ErrorCode::kPeerLost, "its process has ended")));
    case CopyOutcome::kUnreadable:  // memory of a device, for example: the owner sends the whole block
      remote.set_path(RemoteMemory::Path::kMessages);
      transfer.next_ = first;
      transfer.num_copied_ = 0;
  }
}

void Initiator::advance_by(Transfer& transfer, size_t num_bytes) noexcept {
  transfer.num_copied_ += num_bytes;
  if (transfer.num_copied_ < transfer.blocks_[transfer.next_].local.num_bytes) return;
  transfer.num_copied_ = 0;
  ++transfer.next_;
}

// Long steps are shared with other threads, in several copies. A copy has a bounded number of blocks, all of one
// memory.
template <typename Copy, typename... Arguments>
CopyOutcome Initiator::copy_step(Transfer& transfer, const RemoteMemory& remote, std::vector<Copy>& copies,
                                 const Arguments&... arguments) noexcept {
  CopyThreads& threads = CopyThreads::instance();
  const size_t num_bytes = threads.num_bytes_of_step(transfer.num_bytes_, kStep);
  const bool is_own = remote.path() == RemoteMemory::Path::kMemcpy;  // local and remote memory may overlap
  const size_t most_copies = is_own ? 1 : threads.num_parts_for(num_bytes);
  const size_t most_bytes = most_copies == 1 ? kStep : num_bytes / most_copies;
  copies.clear();
  while (copies.size() < most_copies) {
    copies.emplace_back(arguments...);
    if (add_blocks(transfer, remote, most_bytes, copies.back())) continue;
    copies.pop_back();
    break;
  }
  return threads.run(copies.size(), CopyOutcome::kCopied, [&](size_t part) noexcept { return copies[part].run(); });
}

template <typename Copy>
bool Initiator::add_blocks(Transfer& transfer, const RemoteMemory& remote, size_t most, Copy& copy) noexcept {
  const size_t whole = most;
  while (most != 0 && copy.has_room() && transfer.next_ < transfer.blocks_.size()) {
    const Transfer::Block& block = transfer.blocks_[transfer.next_];
    if (block.remote != &remote) break;
    const size_t length = std::min(most, block.local.num_bytes - transfer.num_copied_);
    copy.add(block.address + transfer.num_copied_, block.local.data + transfer.num_copied_, length);
    advance_by(transfer, length);
    most -= length;
  }
  return most != whole;
}

}  // namespace axon::rpc
