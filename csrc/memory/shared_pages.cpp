#include "memory/shared_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/resources.hpp"

namespace axon {

static constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// linux/memfd.h defines it since Linux 6.3. A system with vm.memfd_noexec=2 allows only memory that is not executable.
static constexpr unsigned kNotExecutable = 0x0008;

static Status failed(const std::string& call) {
  return out_of(call, errno);
}

static FileDescriptor make_file(const char* name) noexcept {
  FileDescriptor file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNotExecutable));
  if (file.valid() || errno != EINVAL) return file;
  return FileDescriptor(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));  // before Linux 6.3
}

// The kernel may have added F_SEAL_EXEC.
static bool is_sealed(const FileDescriptor& file, size_t num_bytes) noexcept {
  struct stat found{};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals && fstat(file.get(), &found) == 0 &&
         found.st_size == static_cast<off_t>(num_bytes);
}

Result<SharedPages> SharedPages::map_unchecked(FileDescriptor descriptor, size_t num_bytes) {
  void* data = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) return failed("mmap of " + std::to_string(num_bytes) + " shared bytes");
  return SharedPages(std::move(descriptor), static_cast<std::byte*>(data), num_bytes);
}

Result<SharedPages> SharedPages::make(size_t num_bytes, const char* name) {
  FileDescriptor file = make_file(name);
  if (!file.valid()) return failed("memfd_create");
  const auto allocate = [&] { return fallocate(file.get(), 0, 0, static_cast<off_t>(num_bytes)) == 0; };
  bool is_there = allocate();
  while (!is_there && errno == EINTR) is_there = allocate();
  if (!is_there) return failed("fallocate of " + std::to_string(num_bytes) + " shared bytes");
  return seal(std::move(file), num_bytes);
}

Result<SharedPages> SharedPages::seal(FileDescriptor file, size_t num_bytes) {
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) return failed("sealing shared memory");
  return map_unchecked(std::move(file), num_bytes);
}

// The kernel refuses obvious excess of private memory only.
static bool exceeds_memory(size_t num_bytes) noexcept {
  void* const probe = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe != MAP_FAILED) munmap(probe, num_bytes);
  return probe == MAP_FAILED;
}

Result<SharedPages> SharedPages::make_on_use(size_t num_bytes, const char* name) {
  if (exceeds_memory(num_bytes)) return failed("allocation of " + std::to_string(num_bytes) + " shared bytes");
  FileDescriptor file = make_file(name);
  if (!file.valid()) return failed("memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(num_bytes)) != 0) {
    return failed("ftruncate to " + std::to_string(num_bytes) + " shared bytes");
  }
  return seal(std::move(file), num_bytes);
}

Result<SharedPages> SharedPages::map(FileDescriptor fetched, size_t num_bytes) {
  if (!is_sealed(fetched, num_bytes)) {
    return Status(ErrorCode::kInvalidArgument, "descriptor " + std::to_string(fetched.get()) +
                                                   " is not shared memory of " + std::to_string(num_bytes) + " bytes");
  }
  Result<SharedPages> mapped = map_unchecked(std::move(fetched), num_bytes);
  if (mapped.ok()) mapped.value().close();
  return mapped;
}

Result<SharedPages> SharedPages::open(int32_t pid, int descriptor, size_t num_bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return failed("open of " + path);
  Result<SharedPages> mapped = map(std::move(file), num_bytes);
  if (!mapped.ok()) return Status(mapped.status().code(), path + ": " + mapped.status().message());
  return mapped;
}

SharedPages::~SharedPages() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
}

}  // namespace axon
