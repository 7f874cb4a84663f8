// Memory of a peer that this process has opened. Slices and transfers share it; once nothing refers to it any more, the
// peer is told.
//
// Any thread, except for is_revoked.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rpc/core/one_sided/messages.hpp"

namespace axon::rpc {

class Connection;

class RemoteMemory {
 public:
  // How bytes reach this memory, or leave it.
  enum class Path : uint8_t {
    kMessages,  // the owner moves them
    kCma,       // reads: copied from the owner's process; writes: by messages
    kMemcpy,    // the memory of this process
  };

  RemoteMemory(std::shared_ptr<Connection> connection, uint32_t number, GrantInfo info);
  ~RemoteMemory();
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  const std::shared_ptr<Connection>& connection() const noexcept { return connection_; }
  uint32_t number() const noexcept { return number_; }
  const std::string& region() const noexcept { return info_.name; }
  Access access() const noexcept { return static_cast<Access>(info_.prefix.access); }
  uint64_t num_bytes() const noexcept { return info_.prefix.num_bytes; }
  uint64_t flag_value() const noexcept { return info_.prefix.flag_value; }
  uint64_t flag_address() const noexcept { return info_.prefix.flag_address; }
  const std::vector<Extent>& extents() const noexcept { return info_.extents; }
  // Returns which extent has a byte, and where an extent begins.
  size_t extent_at(uint64_t offset) const noexcept {
    return static_cast<size_t>(std::ranges::upper_bound(ends_, offset) - ends_.begin());
  }
  uint64_t begin_of(size_t extent) const noexcept { return extent == 0 ? 0 : ends_[extent - 1]; }

  Path path() const noexcept { return path_.load(std::memory_order_relaxed); }
  void set_path(Path path) noexcept { path_.store(path, std::memory_order_relaxed); }

  bool is_revoked = false;  // progress owner only

 private:
  const std::shared_ptr<Connection> connection_;  // shared with the runtime, which may be closed first
  const uint32_t number_;
  const GrantInfo info_;
  const std::vector<uint64_t> ends_ = ends_of(info_.extents);
  std::atomic<Path> path_{Path::kMessages};
};

}  // namespace axon::rpc
