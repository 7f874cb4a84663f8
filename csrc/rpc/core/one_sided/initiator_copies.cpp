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

// Long steps are shared with other threads, in parts of a step of their own each.
DirectRead::Outcome Initiator::read_from_process(Transfer& transfer, const RemoteMemory& remote) noexcept {
  CopyThreads& threads = CopyThreads::instance();
  const size_t num_bytes = threads.num_bytes_of_step(transfer.num_bytes_, kStep);
  const size_t num_parts = threads.num_parts_for(num_bytes);
  const DirectRead::FlagLocation flag{.address = remote.flag_address(), .value = remote.flag_value()};
  DirectRead read(connection_.engine().peers().pid_of(peer_), flag);
  if (num_parts == 1) {
    add_blocks(transfer, remote, kStep, read);
    return read.run();
  }
  std::vector<DirectRead> reads(num_parts, read);
  for (DirectRead& part : reads) add_blocks(transfer, remote, num_bytes / num_parts, part);
  std::atomic<DirectRead::Outcome> failed{DirectRead::Outcome::kRead};
  threads.run(num_parts, [&](size_t part) noexcept {
    const DirectRead::Outcome outcome = reads[part].run();
    if (outcome != DirectRead::Outcome::kRead) failed.store(outcome, std::memory_order_relaxed);
  });
  return failed.load(std::memory_order_relaxed);
}

void Initiator::add_blocks(Transfer& transfer, const RemoteMemory& remote, size_t most, DirectRead& read) noexcept {
  while (most != 0 && read.has_room() && transfer.next_ < transfer.blocks_.size()) {
    const Transfer::Block& block = transfer.blocks_[transfer.next_];
    if (block.remote != &remote) return;
    const size_t length = std::min(most, block.local.num_bytes - transfer.num_copied_);
    read.add(block.address + transfer.num_copied_, block.local.data + transfer.num_copied_, length);
    advance_by(transfer, length);
    most -= length;
  }
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
