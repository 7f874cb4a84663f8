#include "rpc/core/one_sided/transfer.hpp"

#include <algorithm>
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/one_sided.hpp"
#include "rpc/core/one_sided/staging_slots.hpp"

namespace axon::rpc {

void Transfer::add(const std::shared_ptr<RemoteMemory>& remote, uint64_t offset, Buffer local) {
  use(remote);
  num_bytes_ += local.num_bytes;
  ++num_blocks_;
  for (size_t i = remote->extent_at(offset); local.num_bytes != 0; i = remote->extent_at(offset)) {
    const Extent& extent = remote->extents()[i];
    const uint64_t begin = offset - remote->begin_of(i);  // in the extent
    uint64_t length = std::min<uint64_t>(local.num_bytes, extent.num_bytes - begin);
    if (remote->is_device()) length = std::min<uint64_t>(length, kSegmentNumBytes);  // the owner stages it
    blocks_.push_back(
        {.remote = remote.get(), .offset = offset, .address = extent.address + begin, .local = local.slice(0, length)});
    local = local.slice(length, local.num_bytes - length);
    offset += length;
  }
}

void Transfer::use(const std::shared_ptr<RemoteMemory>& remote) {
  if (remotes_.empty() || remotes_.back() != remote) remotes_.push_back(remote);
}

void Transfer::add(std::unique_ptr<DeviceWork> work, size_t num_blocks, uint64_t num_bytes) {
  device_works_.push_back(std::move(work));
  num_blocks_ += num_blocks;
  num_bytes_ += num_bytes;
}

const char* Transfer::path() const noexcept {
  if (remotes_.empty()) return "messages";
  const bool is_fetched =
      kind_ == Kind::kWrite && remotes_.front()->path() == RemoteMemory::Path::kCma;  // by the owner
  return is_fetched ? "messages" : remotes_.front()->name_of_path();
}

void DeviceWork::end(const Status& status, Text text) noexcept {
  Initiator& initiator = transfer_.connection_->one_sided().initiator();
  initiator.on_device_end(transfer_, text == Text::kBare ? initiator.about(transfer_, status) : status.clone());
}

void Transfer::start_on(engine::Engine& engine) noexcept {
  retain();
  engine.submit_after_completion(*this);
  if (!finished()) engine.wake();
}

void Transfer::fail_unstarted(Status status) noexcept {
  retain();
  status_ = std::move(status);
  is_drained_ = true;
  complete();
}

void Transfer::begin() noexcept {
  connection_->one_sided().initiator().begin(*this);
}

void Transfer::Continuation::begin() noexcept {
  transfer.connection_->one_sided().initiator().resume(transfer);
}

void Transfer::complete() noexcept {
  const bool is_drained = is_drained_;  // before finished(), after which another thread may set it
  if (is_drained) {                     // first, so that the memory belongs to its owner once the end is known
    owners_.clear();
    device_works_.clear();
    released_.store(true, std::memory_order_release);
  }
  if (!finished()) {
    on_finished(status_);
    finished_.store(true);
  }
  if (is_drained) release();
}

std::string Transfer::description() const {
  if (kind_ == Kind::kNotify) return "the notification";
  if (kind_ == Kind::kOpen) return "the opening of a handle";
  const std::string verb = kind_ == Kind::kRead ? "the read of " : "the write of ";
  const std::string where = remotes_.empty() ? "" : " of region '" + remotes_.front()->region() + "'";
  return verb + std::to_string(num_bytes_) + " bytes" + where;
}

}  // namespace axon::rpc
