#include "transport/rings/process_memory.hpp"

#include <sys/uio.h>

#include <array>
#include <cerrno>

#include "base/copy_threads.hpp"

namespace axon::transport {

static ReadOutcome read_part(const RingAddress& process, uint64_t from, std::byte* to, size_t num_bytes) noexcept {
  uint64_t identity = 0;
  const auto remote = [](uint64_t address) { return reinterpret_cast<void*>(address); };
  const std::array<iovec, 2> local{
      {{.iov_base = to, .iov_len = num_bytes}, {.iov_base = &identity, .iov_len = sizeof identity}}};
  const std::array<iovec, 2> there{{{.iov_base = remote(from), .iov_len = num_bytes},
                                    {.iov_base = remote(process.identity), .iov_len = sizeof identity}}};
  const ssize_t num_read = process_vm_readv(process.pid, local.data(), local.size(), there.data(), there.size(), 0);
  if (num_read < 0 && (errno == EPERM || errno == ENOSYS)) return ReadOutcome::kForbidden;
  if (num_read < 0 && errno == ESRCH) return ReadOutcome::kGone;
  if (num_read != static_cast<ssize_t>(num_bytes + sizeof identity)) return ReadOutcome::kUnreadable;
  return identity == process.key ? ReadOutcome::kRead : ReadOutcome::kGone;
}

ReadOutcome read_process(const RingAddress& process, uint64_t from, std::byte* to, size_t num_bytes) noexcept {
  CopyThreads& threads = CopyThreads::instance();
  const size_t num_parts = threads.num_parts_for(num_bytes);
  if (num_parts == 1) return read_part(process, from, to, num_bytes);
  return threads.run(num_parts, ReadOutcome::kRead, [&](size_t part) noexcept {
    const size_t begin = num_bytes * part / num_parts;
    const size_t end = num_bytes * (part + 1) / num_parts;
    return read_part(process, from + begin, to + begin, end - begin);
  });
}

}  // namespace axon::transport
