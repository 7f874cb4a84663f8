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

#include "memory/mapped_memory.hpp"
#include "rpc/core/one_sided/direct_copy.hpp"
#include "rpc/core/one_sided/messages.hpp"
#include "rpc/core/one_sided/use_gate.hpp"

namespace axon::rpc {

class Connection;

class RemoteMemory : public std::enable_shared_from_this<RemoteMemory> {
 public:
  // How bytes reach this memory, or leave it.
  enum class Path : uint8_t {
    kMessages,  // the owner moves them
    kCma,       // reads: copied from the owner's process; writes: by messages
    kMemcpy,    // the memory of this process
    kMapped,    // memory of the owner that this process has mapped
    kCuda,      // a device of this process copies, if the local memory is its own or the host's
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
  bool is_device() const noexcept { return info_.prefix.memory == GrantedMemory::kDevice; }
  bool is_mappable() const noexcept { return info_.prefix.memory == GrantedMemory::kMappable; }
  const DeviceLocation& device_location() const noexcept { return info_.device; }
  const std::vector<Extent>& extents() const noexcept { return info_.extents; }
  // Returns which extent has a byte, and where an extent begins.
  size_t extent_at(uint64_t offset) const noexcept {
    return static_cast<size_t>(std::ranges::upper_bound(ends_, offset) - ends_.begin());
  }
  uint64_t begin_of(size_t extent) const noexcept { return extent == 0 ? 0 : ends_[extent - 1]; }

  Path path() const noexcept { return path_.load(std::memory_order_relaxed); }
  const char* name_of_path() const noexcept;
  void set_path(Path path) noexcept { path_.store(path, std::memory_order_relaxed); }

  // Returns whether the addresses of the extents are those of this process.
  bool is_of_this_process() const noexcept { return is_of_this_process_; }
  void set_of_this_process() noexcept { is_of_this_process_ = true; }

  // Both are called before another thread knows this object, and set the path.
  void use_own_memory() noexcept;
  // Maps mappable memory of another process. Fails if what the grant says about it is wrong.
  Status map_from(int32_t pid);
  // Progress owner: the memory has been revoked, or its connection has ended, and no use is left.
  void unmap() noexcept;
  // How this process copies from or to the memory, by kMemcpy or kMapped.
  const MappingHere& mapping_here() const noexcept { return mapping_here_; }

  // How a device of this process uses the memory. Set once, before another thread knows this object.
  void attach(std::unique_ptr<DeviceMapping> mapping) noexcept {
    mapping_ = std::move(mapping);
    set_path(Path::kCuda);
  }
  DeviceMapping* mapping() const noexcept { return mapping_.get(); }
  // Copies by devices that use the mapping. The owner is told that none is left after the memory was revoked.
  UseGate& uses() noexcept { return uses_; }

  bool is_revoked = false;  // progress owner only

 private:
  const std::shared_ptr<Connection> connection_;  // shared with the runtime, which may be closed first
  const uint32_t number_;
  const GrantInfo info_;
  const std::vector<uint64_t> ends_ = ends_of(info_.extents);
  std::atomic<Path> path_{Path::kMessages};
  bool is_of_this_process_ = false;
  MappingHere mapping_here_;
  std::shared_ptr<MappedMemory> mapped_;  // shared with other memory of the same file
  std::unique_ptr<DeviceMapping> mapping_;
  UseGate uses_;
};

}  // namespace axon::rpc
