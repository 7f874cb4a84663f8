// Another process on this host: access to its open files and memory, and whether it still runs. Owns a pidfd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::ipc {

class PeerProcess {
 public:
  // Opens a process by its id in our pid namespace. Later queries refer to this process even if its id is used again.
  static Result<PeerProcess> open(int32_t pid);

  int32_t pid() const noexcept { return pid_; }

  // Returns our own descriptor for the file that is open as `number` in that process. Needs the right to trace the
  // process, which allow_peers() grants.
  Result<FileDescriptor> fetch(int number) const;

  // Reads all of these bytes of its memory, or fails. Needs the same right.
  Status read(uint64_t address, std::span<std::byte> bytes) const;

  // Returns whether this process has that right.
  bool may_be_read() const noexcept;

  // Returns whether the process has ended and the kernel has closed all its resources, including its GPU contexts.
  bool has_ended() const noexcept;

  // Lets processes of this user fetch our descriptors and read our memory. Without it, Yama lets only our parent
  // processes do so.
  static void allow_peers() noexcept;

 private:
  PeerProcess(int32_t pid, FileDescriptor process) noexcept : pid_(pid), process_(std::move(process)) {}

  int32_t pid_;
  FileDescriptor process_;
};

}  // namespace axon::ipc
