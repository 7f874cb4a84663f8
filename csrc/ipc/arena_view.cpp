#include "ipc/arena_view.hpp"

#include <string>
#include <utility>

#include "base/host_id.hpp"

namespace axon::ipc {

Status ArenaView::import(const DeviceAddress& address, int device) {
  if (address.host != this_host()) {
    return Status(ErrorCode::kInvalidArgument, "its process runs on another host or in other namespaces");
  }
  if (!process_) {
    Result<PeerProcess> process = PeerProcess::open(address.pid);
    if (!process.ok()) return std::move(process.status());
    process_ = std::make_shared<const PeerProcess>(std::move(process).value());
  }
  Result<FileDescriptor> descriptor = process_->fetch(address.descriptor);
  if (!descriptor.ok()) return std::move(descriptor.status());
  Result<cuda::SharedMemory> memory = cuda::SharedMemory::import(device, descriptor.value(), address.arena_num_bytes);
  if (!memory.ok()) return std::move(memory.status());
  memory_ = std::move(memory).value();
  show(memory_->data(), address);
  return Status();
}

void ArenaView::show(std::byte* data, const DeviceAddress& address) noexcept {
  data_ = data;
  edition_ = address.edition;
}

void ArenaView::unmap() noexcept {
  data_ = nullptr;
  memory_.reset();
}

}  // namespace axon::ipc
