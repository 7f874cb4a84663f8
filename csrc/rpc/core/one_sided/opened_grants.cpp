#include "rpc/core/one_sided/opened_grants.hpp"

namespace axon::rpc {

void OpenedGrants::end_opening() noexcept {
  if (--num_opening_ == 0) revoked_early_.clear();
}

void OpenedGrants::add(const std::shared_ptr<RemoteMemory>& memory) {
  opened_[memory->number()] = memory;
  if (revoked_early_.contains(memory->number())) (void)revoke(*memory);
}

bool OpenedGrants::revoke(RemoteMemory& memory) noexcept {
  memory.is_revoked = true;
  return end_uses(memory);
}

bool OpenedGrants::end_uses(RemoteMemory& memory) noexcept {
  const bool has_no_use = memory.uses().close();
  if (has_no_use) memory.unmap();
  return has_no_use;
}

void OpenedGrants::end() noexcept {
  for (const auto& [grant, opened] : opened_) {
    if (const std::shared_ptr<RemoteMemory> memory = opened.lock()) (void)end_uses(*memory);
  }
}

bool OpenedGrants::revoke(uint32_t grant) noexcept {
  const auto found = opened_.find(grant);
  if (found != opened_.end()) {
    const std::shared_ptr<RemoteMemory> memory = found->second.lock();
    return !memory || revoke(*memory);
  }
  if (num_opening_ == 0) return true;
  if (revoked_early_.size() >= kMostRevokedEarly) return false;
  revoked_early_.insert(grant);
  return true;
}

}  // namespace axon::rpc
