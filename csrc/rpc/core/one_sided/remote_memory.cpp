#include "rpc/core/one_sided/remote_memory.hpp"

#include <utility>

#include "rpc/core/connection.hpp"

namespace axon::rpc {

namespace {

class ReleaseGrant final : public engine::Submission {
 public:
  ReleaseGrant(std::shared_ptr<Connection> connection, uint32_t grant) noexcept
      : connection_(std::move(connection)), grant_(grant) {}
  void begin() noexcept override {
    connection_->one_sided().initiator().release_grant(grant_);
    delete this;
  }
  void complete() noexcept override {}

 private:
  const std::shared_ptr<Connection> connection_;  // shared with the runtime, which may be closed first
  const uint32_t grant_;
};

}  // namespace

RemoteMemory::RemoteMemory(std::shared_ptr<Connection> connection, uint32_t number, GrantInfo info)
    : connection_(std::move(connection)), number_(number), info_(std::move(info)) {}

const char* RemoteMemory::name_of_path() const noexcept {
  switch (path()) {
    case Path::kMemcpy:
      return "memcpy";
    case Path::kMapped:
      return "shared memory";
    case Path::kCma:
      return "cma";
    case Path::kCuda:
      return is_of_this_process_ ? "cuda" : "cuda ipc";
    case Path::kMessages:
      break;
  }
  return "messages";
}

void RemoteMemory::use_own_memory() noexcept {
  const auto* const flag = reinterpret_cast<const std::atomic<uint64_t>*>(flag_address());
  mapping_here_ = {.flag = flag, .flag_value = flag_value(), .shift = 0};
  set_path(Path::kMemcpy);
}

// A peer may state any addresses.
Status RemoteMemory::map_from(int32_t pid) {
  Result<std::shared_ptr<MappedMemory>> opened = MappedMemory::open(pid, info_.mappable);
  if (!opened.ok()) return std::move(opened.status());
  const MappedMemory& mapped = *opened.value();
  const std::atomic<uint64_t>* const flag = mapped.flag(info_.mappable.flag);
  const auto is_within = [&](const Extent& each) { return mapped.contains(each.address, each.num_bytes); };
  if (flag == nullptr || !std::ranges::all_of(extents(), is_within)) {
    return {ErrorCode::kTransport, "the grant names addresses beyond the mapped memory"};
  }
  mapping_here_ = {.flag = flag, .flag_value = flag_value(), .shift = mapped.shift()};
  mapped_ = std::move(opened).value();
  set_path(Path::kMapped);
  return {};
}

void RemoteMemory::unmap() noexcept {
  if (path() != Path::kMapped) return;
  mapping_here_ = {};
  mapped_ = nullptr;
}

RemoteMemory::~RemoteMemory() {
  engine::Engine& engine = connection_->engine();
  if (engine.is_forked() || engine.has_ended()) return;
  engine.submit_after_completion(*new ReleaseGrant(connection_, number_));
}

}  // namespace axon::rpc
