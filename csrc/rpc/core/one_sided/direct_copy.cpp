#include "rpc/core/one_sided/direct_copy.hpp"

#include <cerrno>
#include <cstring>

namespace axon::rpc {

static iovec block_at(uint64_t address, size_t num_bytes) noexcept {
  return {.iov_base = reinterpret_cast<void*>(address), .iov_len = num_bytes};
}

DirectRead::DirectRead(int32_t pid, FlagLocation flag) noexcept : pid_(pid), flag_(flag) {}

void DirectRead::add(uint64_t address, std::byte* to, size_t num_bytes) noexcept {
  ++num_blocks_;
  num_bytes_ += num_bytes;
  here_[num_blocks_] = {.iov_base = to, .iov_len = num_bytes};
  there_[num_blocks_] = block_at(address, num_bytes);
}

// The kernel copies the blocks in order. A partial copy ended at a block that it cannot read.
CopyOutcome DirectRead::run() noexcept {
  const size_t num_vectors = num_blocks_ + 2;
  here_[0] = {.iov_base = &before_, .iov_len = sizeof before_};
  there_[0] = block_at(flag_.address, sizeof before_);
  here_[num_blocks_ + 1] = {.iov_base = &after_, .iov_len = sizeof after_};
  there_[num_blocks_ + 1] = block_at(flag_.address, sizeof after_);
  const ssize_t num_read = process_vm_readv(pid_, here_.data(), num_vectors, there_.data(), num_vectors, 0);
  if (num_read < 0 && errno == ESRCH) return CopyOutcome::kGone;
  if (num_read >= static_cast<ssize_t>(sizeof before_) && before_ != flag_.value) return CopyOutcome::kRevoked;
  if (num_read != static_cast<ssize_t>(num_bytes_ + sizeof before_ + sizeof after_)) return CopyOutcome::kUnreadable;
  return after_ == flag_.value ? CopyOutcome::kCopied : CopyOutcome::kRevoked;
}

// Local and remote memory of one process may overlap.
CopyOutcome MemoryCopy::run() noexcept {
  const std::atomic<uint64_t>& flag = *mapping_.flag;
  if (flag.load(std::memory_order_acquire) != mapping_.flag_value) return CopyOutcome::kRevoked;
  const bool reads = direction_ == Direction::kFromPeer;
  for (size_t i = 0; i < num_blocks_; ++i) {
    const Block& block = blocks_[i];
    std::memmove(reads ? block.local : block.remote, reads ? block.remote : block.local, block.num_bytes);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the flag is read after the bytes are read or written
  return flag.load(std::memory_order_relaxed) == mapping_.flag_value ? CopyOutcome::kCopied : CopyOutcome::kRevoked;
}

}  // namespace axon::rpc
