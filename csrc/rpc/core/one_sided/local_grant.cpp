#include "rpc/core/one_sided/local_grant.hpp"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/random.hpp"

namespace axon::rpc {

namespace {

struct LocalGrants {
  std::mutex mutex;  // guards the following member
  std::unordered_map<uint64_t, GrantInfo> by_proof;
};

LocalGrants& local_grants() {
  static auto* const kept = new LocalGrants;  // never destroyed: runtimes may end after static objects
  return *kept;
}

}  // namespace

LocalGrant::LocalGrant(GrantInfo info) : proof_(random_number()) {
  const std::lock_guard lock(local_grants().mutex);
  local_grants().by_proof.emplace(proof_, std::move(info));
}

LocalGrant::~LocalGrant() {
  const std::lock_guard lock(local_grants().mutex);
  local_grants().by_proof.erase(proof_);
}

std::optional<GrantInfo> LocalGrant::take(uint64_t proof) {
  const std::lock_guard lock(local_grants().mutex);
  auto taken = local_grants().by_proof.extract(proof);
  if (taken.empty()) return std::nullopt;
  return std::move(taken.mapped());
}

}  // namespace axon::rpc
