#include "stream/peer_process.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace axon {

// System calls that glibc wraps only since 2.36.
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

bool PeerProcess::has_ended() const noexcept {
  pollfd ended{.fd = process_.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) == 1;
}

void PeerProcess::allow_peers() noexcept {
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // an error where there is no Yama: nothing to allow
}

}  // namespace axon
