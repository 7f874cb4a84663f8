#include "ipc/peer_process.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace axon::ipc {

// glibc wraps these system calls only since version 2.36.
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

static Status failed(const char* call, int32_t pid) {
  return {ErrorCode::kInternal,
          std::string(call) + " on process " + std::to_string(pid) + ": " + std::generic_category().message(errno)};
}

Result<PeerProcess> PeerProcess::open(int32_t pid) {
  FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return failed("pidfd_open", pid);
  return PeerProcess(pid, std::move(process));
}

Result<FileDescriptor> PeerProcess::fetch(int number) const {
  FileDescriptor fetched(static_cast<int>(syscall(SYS_pidfd_getfd, process_.get(), number, 0)));
  if (!fetched.valid()) return failed("pidfd_getfd", pid_);
  return fetched;
}

// Reads by process id: if this process has ended, the bytes may be those of another process.
Status PeerProcess::read(uint64_t address, std::span<std::byte> bytes) const {
  const iovec here{.iov_base = bytes.data(), .iov_len = bytes.size()};
  const iovec there{.iov_base = reinterpret_cast<void*>(address), .iov_len = bytes.size()};
  const ssize_t num_read = process_vm_readv(pid_, &here, 1, &there, 1, 0);
  if (num_read < 0) return failed("process_vm_readv", pid_);
  if (static_cast<size_t>(num_read) < bytes.size()) {
    return {ErrorCode::kInternal, "process " + std::to_string(pid_) + " has no memory at the given address"};
  }
  return Status();
}

// Both calls check the right first, and then fail because they are given no valid target.
bool PeerProcess::may_be_read() const noexcept {
  std::byte byte{};
  const iovec here{.iov_base = &byte, .iov_len = 1};
  const iovec nowhere{.iov_base = nullptr, .iov_len = 1};
  if (process_vm_readv(pid_, &here, 1, &nowhere, 1, 0) != -1 || errno != EFAULT) return false;
  return syscall(SYS_pidfd_getfd, process_.get(), -1, 0) == -1 && errno == EBADF;
}

bool PeerProcess::has_ended() const noexcept {
  pollfd ended{.fd = process_.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) == 1;
}

void PeerProcess::allow_peers() noexcept {
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // fails without Yama, where no permission is needed
}

}  // namespace axon::ipc
