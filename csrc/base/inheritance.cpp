#include "base/inheritance.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace axon {

namespace {

struct Withheld {
  int descriptor;
  WithheldFromForks::What what;
};

struct Registry {
  std::mutex mutex;  // fork() holds it, so that a child's list is complete
  std::vector<Withheld> all;
};

// Never destroyed: descriptors may be closed until the process ends.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

// epoll(7) allows sets within sets up to this depth.
constexpr int kDeepestNesting = 5;

// A line of /proc/self/fdinfo of an epoll set: "tfd: 18 events: 19 data: 12 pos:0 ino:68a4 sdev:9".
struct Target {
  int descriptor;
  ino_t inode;
  dev_t device;
};

// Decodes the kernel's internal device number, which differs from that of stat(2).
dev_t device_of(unsigned long number) noexcept {
  return makedev(number >> 20, number & 0xfffff);
}

bool parse(const char* line, Target& target) noexcept {
  unsigned long inode = 0;
  unsigned long device = 0;
  if (std::sscanf(line, "tfd: %d", &target.descriptor) != 1) return false;
  const char* const identity = std::strstr(line, "ino:");
  if (identity == nullptr || std::sscanf(identity, "ino:%lx sdev:%lx", &inode, &device) != 2) return false;
  target.inode = inode;
  target.device = device_of(device);
  return true;
}

// Calls visit(descriptor, facts) for each descriptor that the set watches. Allocates nothing, since it runs in forked
// children. In a set that another process shares, a number may mean another file than here, hence the comparison.
template <typename Visit>
void for_each_target(int epoll_set, const Visit& visit) noexcept {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/self/fdinfo/%d", epoll_set);
  const int file = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  std::array<char, 4096> text;
  size_t num_held = 0;
  for (ssize_t num_read = 0; (num_read = ::read(file, text.data() + num_held, text.size() - 1 - num_held)) > 0;) {
    num_held += static_cast<size_t>(num_read);
    text[num_held] = '\0';
    char* begin = text.data();
    for (char* end = nullptr; (end = std::strchr(begin, '\n')) != nullptr; begin = end + 1) {
      *end = '\0';
      Target target{};
      struct stat facts{};
      if (parse(begin, target) && fstat(target.descriptor, &facts) == 0 && facts.st_ino == target.inode &&
          facts.st_dev == target.device) {
        visit(target.descriptor, facts);
      }
    }
    num_held -= static_cast<size_t>(begin - text.data());
    std::memmove(text.data(), begin, num_held);
  }
  ::close(file);
}

template <typename Visit>
void for_each_target_within(int epoll_set, const Visit& visit, int depth = 0) noexcept {
  for_each_target(epoll_set, [&](int descriptor, const struct stat& facts) {
    visit(descriptor, facts);
    if (!S_ISSOCK(facts.st_mode) && depth < kDeepestNesting) for_each_target_within(descriptor, visit, depth + 1);
  });
}

// If no descriptor is left for the blank, the child's withheld descriptors are closed instead.
void withhold_all() noexcept {
  const int blank = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const auto withhold = [blank](int descriptor) {
    blank >= 0 ? ::dup3(blank, descriptor, O_CLOEXEC) : ::close(descriptor);
  };
  for (const Withheld& each : registry().all) {
    if (each.what == WithheldFromForks::What::kItself) {
      withhold(each.descriptor);
      continue;
    }
    for_each_target_within(each.descriptor, [&](int descriptor, const struct stat& facts) {
      if (S_ISSOCK(facts.st_mode)) withhold(descriptor);
    });
  }
  if (blank >= 0) ::close(blank);
}

}  // namespace

void withhold_at_forks() {
  [[maybe_unused]] static const int registered =
      pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                     [] {
                       withhold_all();
                       registry().mutex.unlock();
                     });
}

[[maybe_unused]] static const bool withholds = (withhold_at_forks(), true);

WithheldFromForks::WithheldFromForks(int descriptor, What what) : descriptor_(descriptor) {
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back({descriptor, what});
}

WithheldFromForks::WithheldFromForks(WithheldFromForks&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

WithheldFromForks& WithheldFromForks::operator=(WithheldFromForks&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

WithheldFromForks::~WithheldFromForks() {
  if (!is_active()) return;
  const std::lock_guard lock(registry().mutex);
  forget();
}

void WithheldFromForks::close_descriptor() noexcept {
  const std::lock_guard lock(registry().mutex);
  ::close(descriptor_);
  forget();
}

// The caller holds the registry's lock.
void WithheldFromForks::forget() noexcept {
  std::vector<Withheld>& all = registry().all;
  const auto found = std::ranges::find(all, std::exchange(descriptor_, -1), &Withheld::descriptor);
  if (found != all.end()) all.erase(found);
}

void close_on_exec(int epoll_set) noexcept {
  const auto close_each = [](int descriptor) {
    const int flags = fcntl(descriptor, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) fcntl(descriptor, F_SETFD, flags | FD_CLOEXEC);
  };
  close_each(epoll_set);
  for_each_target_within(epoll_set, [&](int descriptor, const struct stat&) { close_each(descriptor); });
}

std::vector<int> epoll_sets() {
  std::vector<int> sets;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  while (const dirent* const entry = folder ? readdir(folder.get()) : nullptr) {
    std::array<char, 64> text{};
    if (readlinkat(dirfd(folder.get()), entry->d_name, text.data(), text.size() - 1) <= 0) continue;
    if (std::string_view(text.data()) == "anon_inode:[eventpoll]") sets.push_back(std::atoi(entry->d_name));
  }
  std::ranges::sort(sets);
  return sets;
}

bool watches(int epoll_set, int descriptor) noexcept {
  bool found = false;
  for_each_target(epoll_set, [&](int each, const struct stat&) { found |= each == descriptor; });
  return found;
}

}  // namespace axon
