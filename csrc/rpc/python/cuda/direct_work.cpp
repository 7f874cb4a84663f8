#include "rpc/python/cuda/direct_work.hpp"

#include <algorithm>
#include <utility>

#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

DirectWork::DirectWork(rpc::Transfer& transfer, Parts parts) noexcept
    : DeviceWork(transfer), parts_(std::move(parts)) {}

// The engine has ended before the copy, which may still use the memory and the flag.
DirectWork::~DirectWork() {
  if (!under_way_) return;
  [[maybe_unused]] auto* const leaked = new std::pair(std::move(parts_.owner), std::move(under_way_));
}

void DirectWork::launch(std::optional<cuda::StreamView> after) {
  for (const std::shared_ptr<rpc::RemoteMemory>& remote : parts_.remotes) {
    status_ = uses_.begin(remote, transfer().kind());
    if (!status_.ok()) return;
  }
  status_ = copy(after);
  parts_.addresses = nullptr;
}

Status DirectWork::copy(std::optional<cuda::StreamView> after) {
  Result<ipc::BlockCopier*> copier = ipc::BlockCopier::of(parts_.gpu);
  if (!copier.ok()) return std::move(copier.status());
  auto method = ipc::BlockCopier::Method::kAny;
  for (const std::shared_ptr<rpc::RemoteMemory>& remote : parts_.remotes) {
    method = std::max(method, mapping_of(*remote).method_from(parts_.gpu));
  }
  Result<ipc::BlockCopier::UnderWay> launched = copier.value()->copy(
      {.fill = [&] { return parts_.addresses(*copier.value()); }, .after = after, .method = method});
  if (!launched.ok()) return std::move(launched.status());
  under_way_.emplace(std::move(launched).value());
  return Status();
}

void DirectWork::begin() noexcept {
  if (!under_way_) return finish();
  transfer().connection()->engine().wait_for_flag(*this, under_way_->flag());
}

void DirectWork::on_flag_set() noexcept {
  if (under_way_->flag().load(std::memory_order_acquire) != 0) {
    under_way_.reset();
  } else {
    status_ = Status(ErrorCode::kAborted, "the engine has ended");
  }
  finish();
}

void DirectWork::finish() noexcept {
  uses_.end();
  end(status_);
}

}  // namespace axon::rpc_python
