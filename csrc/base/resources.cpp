#include "base/resources.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"

namespace axon {

static constexpr const char* kDescriptors = "/proc/self/fd";
static constexpr const char* kSharedMemory = "/dev/shm";

static std::string text_of(int error) {
  return std::generic_category().message(error);
}

static rlim_t soft_limit(__rlimit_resource resource) noexcept {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

static std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

Status out_of(const std::string& call, int error) {
  const std::string text = call + ": " + text_of(error);
  if (error == EMFILE) {
    return {ErrorCode::kResourceExhausted, text + " (all " + limit_text(soft_limit(RLIMIT_NOFILE)) +
                                               " file descriptors of this process are in use; ulimit -n raises the "
                                               "limit)"};
  }
  if (error == ENFILE) {
    return {ErrorCode::kResourceExhausted, text +
                                               " (all file descriptors of this system are in use; sysctl fs.file-max "
                                               "raises the limit)"};
  }
  if (error == ENOMEM || error == ENOSPC) return {ErrorCode::kTransport, text + " (memory limit of the container?)"};
  return {ErrorCode::kTransport, text};
}

// Before Linux 6.2 the folder reports no size, so its entries are counted.
static std::optional<size_t> num_open_descriptors() noexcept {
  struct stat found{};
  if (stat(kDescriptors, &found) == 0 && found.st_size > 0) return static_cast<size_t>(found.st_size);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kDescriptors), &closedir);
  if (!folder) return errno == EMFILE ? std::optional(static_cast<size_t>(soft_limit(RLIMIT_NOFILE))) : std::nullopt;
  size_t num_open = 0;
  while (const dirent* entry = readdir(folder.get())) num_open += entry->d_name[0] != '.' ? 1 : 0;
  return num_open - 1;  // without the descriptor of the folder itself
}

std::optional<size_t> num_free_descriptors() noexcept {
  const std::optional<size_t> num_open = num_open_descriptors();
  if (!num_open) return std::nullopt;
  const auto limit = static_cast<size_t>(soft_limit(RLIMIT_NOFILE));
  return limit > *num_open ? limit - *num_open : 0;
}

Status check_descriptors(size_t num_wanted, const std::string& purpose) {
  const std::optional<size_t> num_free = num_free_descriptors();
  if (!num_free || *num_free >= num_wanted) return Status();
  return {ErrorCode::kResourceExhausted, std::to_string(*num_free) + " of " + limit_text(soft_limit(RLIMIT_NOFILE)) +
                                             " file descriptors of this process are left, and " +
                                             std::to_string(num_wanted) + " are needed to " + purpose +
                                             "; ulimit -n raises the limit"};
}

void reserve_descriptors(size_t num_wanted) noexcept {
  const FileDescriptor any(eventfd(0, EFD_CLOEXEC));
  if (!any.valid()) return;
  const size_t num_free = num_free_descriptors().value_or(0);
  const size_t last = num_open_descriptors().value_or(0) + std::min(num_wanted, num_free);
  const FileDescriptor at_the_end(fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(last) - 1));
}

size_t num_cores() noexcept {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? static_cast<size_t>(CPU_COUNT(&cores)) : size_t{1} << 10;
}

Status check_threads(size_t num_wanted) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> threads;
  Status started;
  try {
    while (threads.size() < num_wanted) threads.emplace_back([ended] { ended.wait(); });
  } catch (const std::system_error& failure) {
    started = Status(ErrorCode::kResourceExhausted, describe_thread_failure("axon-progress", failure));
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  return started;
}

std::string describe_thread_failure(const char* name, const std::system_error& failure) {
  return "the thread '" + std::string(name) + "' cannot be started: " + text_of(failure.code().value()) +
         " (ulimit -u is " + limit_text(soft_limit(RLIMIT_NPROC)) +
         "; a container may have a limit of its own: docker run --pids-limit)";
}

size_t room_in_shared_memory() noexcept {
  struct statvfs found{};
  const bool is_writable = statvfs(kSharedMemory, &found) == 0 && (found.f_flag & ST_RDONLY) == 0;
  return is_writable ? static_cast<size_t>(found.f_bavail) * found.f_frsize : 0;
}

std::string describe_shared_memory() {
  struct statvfs found{};
  if (statvfs(kSharedMemory, &found) != 0) return std::string(kSharedMemory) + " (" + text_of(errno) + ")";
  const auto mib = [&](uint64_t num_blocks) { return std::to_string((num_blocks * found.f_frsize) >> 20) + " MiB"; };
  const char* const mode = (found.f_flag & ST_RDONLY) != 0 ? ", read-only" : "";
  return std::string(kSharedMemory) + " (" + mib(found.f_blocks) + ", " + mib(found.f_bavail) + " of them free" + mode +
         ")";
}

}  // namespace axon
