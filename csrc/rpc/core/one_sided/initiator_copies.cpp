// The initiator's direct copies: within this process, and from another process of this host.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "base/copy_threads.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/denials.hpp"
#include "rpc/core/one_sided/initiator.hpp"

namespace axon::rpc {

bool Initiator::copies_next(const Transfer& transfer) const noexcept {
  const RemoteMemory::Path path = transfer.blocks_[transfer.next_].remote->path();
  return path == RemoteMemory::Path::kMemcpy ||
         (path == RemoteMemory::Path::kCma && transfer.kind_ == Transfer::Kind::kRead);
}

void Initiator::copy(Transfer& transfer) noexcept {
  const RemoteMemory& remote = *transfer.blocks_[transfer.next_].remote;
  if (remote.is_revoked) {
    return finish(transfer, about(transfer, region_is_closed(remote.region())));
  }
  remote.path() == RemoteMemory::Path::kMemcpy ? copy_within_process(transfer) : copy_from_process(transfer);
}

void Initiator::advance_by(Transfer& transfer, size_t num_bytes) noexcept {
  transfer.num_copied_ += num_bytes;
  if (transfer.num_copied_ < transfer.blocks_[transfer.next_].local.num_bytes) return;
  transfer.num_copied_ = 0;
  ++transfer.next_;
}

// The region's owner revokes it as progress owner, and so cannot do it during the copy.
void Initiator::copy_within_process(Transfer& transfer) noexcept {
  const RemoteMemory& remote = *transfer.blocks_[transfer.next_].remote;
  const auto& flag = *reinterpret_cast<const std::atomic<uint64_t>*>(remote.flag_address());
  if (flag.load(std::memory_order_relaxed) != remote.flag_value()) {
    return finish(transfer, about(transfer, region_is_closed(remote.region())));
  }
  for (size_t left = kStep; left != 0 && transfer.next_ < transfer.blocks_.size();) {
    const Transfer::Block& block = transfer.blocks_[transfer.next_];
    if (block.remote != &remote) return;
    const size_t length = std::min(left, block.local.num_bytes - transfer.num_copied_);
    auto* const there = reinterpret_cast<std::byte*>(block.address) + transfer.num_copied_;
    std::byte* const here = block.local.data + transfer.num_copied_;
    const bool reads = transfer.kind_ == Transfer::Kind::kRead;
    std::memmove(reads ? here : there, reads ? there : here, length);
    advance_by(transfer, length);
    left -= length;
  }
}

// Long steps are shared with other threads, in several reads. A read has a bounded number of blocks, all of one memory.
DirectRead::Outcome Initiator::read_from_process(Transfer& transfer, const RemoteMemory& remote) noexcept {
  CopyThreads& threads = CopyThreads::instance();
  const size_t num_bytes = threads.num_bytes_of_step(transfer.num_bytes_, kStep);
  const size_t most_reads = threads.num_parts_for(num_bytes);
  const size_t most_bytes = most_reads == 1 ? kStep : num_bytes / most_reads;
  const int32_t pid = connection_.engine().peers().pid_of(peer_);
  reads_.clear();
  while (reads_.size() < most_reads) {
    reads_.emplace_back(pid, DirectRead::FlagLocation{.address = remote.flag_address(), .value = remote.flag_value()});
    if (add_blocks(transfer, remote, most_bytes, reads_.back())) continue;
    reads_.pop_back();
    break;
  }
  return threads.run(reads_.size(), DirectRead::Outcome::kRead,
                     [&](size_t part) noexcept { return reads_[part].run(); });
}

bool Initiator::add_blocks(Transfer& transfer, const RemoteMemory& remote, size_t most, DirectRead& read) noexcept {
  const size_t whole = most;
  while (most != 0 && read.has_room() && transfer.next_ < transfer.blocks_.size()) {
    const Transfer::Block& block = transfer.blocks_[transfer.next_];
    if (block.remote != &remote) break;
    const size_t length = std::min(most, block.local.num_bytes - transfer.num_copied_);
    read.add(block.address + transfer.num_copied_, block.local.data + transfer.num_copied_, length);
    advance_by(transfer, length);
    most -= length;
  }
  return most != whole;
}

void Initiator::copy_from_process(Transfer& transfer) noexcept {
  RemoteMemory& remote = *transfer.blocks_[transfer.next_].remote;
  const size_t first = transfer.next_;
  switch (read_from_process(transfer, remote)) {
    case DirectRead::Outcome::kRead:
      return;
    case DirectRead::Outcome::kRevoked:
      return finish(transfer, about(transfer, region_is_closed(remote.region())));
    case DirectRead::Outcome::kGone:
      return finish(transfer, about(transfer, Status(ErrorCode::kPeerLost, "its process has ended")));
    case DirectRead::Outcome::kUnreadable:  // memory of a device, for example: the owner sends the whole block
      remote.set_path(RemoteMemory::Path::kMessages);
      transfer.next_ = first;
      transfer.num_copied_ = 0;
  }
}

}  // namespace axon::rpc
