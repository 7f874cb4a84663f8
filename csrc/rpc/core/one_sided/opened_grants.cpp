#include "rpc/core/one_sided/opened_grants.hpp"

namespace axon::rpc {

void OpenedGrants::end_opening() noexcept {
  if (--num_opening_ == 0) revoked_early_.clear();
}

void OpenedGrants::add(const std::shared_ptr<RemoteMemory>& memory) {
  opened_[memory->number()] = memory;
  memory->is_revoked = revoked_early_.contains(memory->number());
  if (memory->is_revoked) memory->uses().close();
}

bool OpenedGrants::revoke(uint32_t grant) noexcept {
  const auto found = opened_.find(grant);
  if (found != opened_.end()) {
    const std::shared_ptr<RemoteMemory> memory = found->second.lock();
    if (!memory) return true;
    memory->is_revoked = true;
    return memory->uses().close();
  }
  if (num_opening_ == 0) return true;
  if (revoked_early_.size() >= kMostRevokedEarly) return false;
  revoked_early_.insert(grant);
  return true;
}

}  // namespace axon::rpc
