#include "gpu_comm/workspace/shared_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace axon::gpu_comm {

static Status failed(const char* call) {
  return {ErrorCode::kResourceExhausted, std::string(call) + ": " + std::generic_category().message(errno)};
}

void SharedPage::Unmapper::operator()(std::byte* data) const noexcept {
  (void)munmap(data, kNumBytes);
}

Result<SharedPage> SharedPage::create() {
  FileDescriptor memory(memfd_create("axon", MFD_CLOEXEC));
  if (!memory.valid()) return failed("memfd_create");
  if (fallocate(memory.get(), 0, 0, kNumBytes) != 0) return failed("fallocate");
  Result<SharedPage> page = map(memory);
  if (page.ok()) page.value().memory_ = std::move(memory);
  return page;
}

Result<SharedPage> SharedPage::map(const FileDescriptor& memory) {
  void* const data = mmap(nullptr, kNumBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (data == MAP_FAILED) return failed("mmap");
  return SharedPage(static_cast<std::byte*>(data));
}

}  // namespace axon::gpu_comm
