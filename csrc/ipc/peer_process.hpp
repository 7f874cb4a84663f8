// Another process of this host: what it has open and in memory, and whether it still runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::ipc {

class PeerProcess {
 public:
  // By its id in our pid namespace. Later questions are about this process, whoever gets the id afterwards.
  static Result<PeerProcess> open(int32_t pid);

  int32_t pid() const noexcept { return pid_; }

  // A descriptor of ours for what `number` is over there. Needs the right to trace it, which allow_peers() gives.
  Result<FileDescriptor> fetch(int number) const;

  // All of these bytes of its memory, or an error; the same right.
  Status read(uint64_t address, std::span<std::byte> bytes) const;

  // Whether this process has that right.
  bool may_be_read() const noexcept;

  // Ended, and the kernel has closed all it had, its GPU contexts too.
  bool has_ended() const noexcept;

  // Lets processes of this user fetch descriptors of ours and read our memory, where the kernel (Yama) would only let
  // our parents.
  static void allow_peers() noexcept;

 private:
  PeerProcess(int32_t pid, FileDescriptor process) noexcept : pid_(pid), process_(std::move(process)) {}

  int32_t pid_;
  FileDescriptor process_;
};

}  // namespace axon::ipc
