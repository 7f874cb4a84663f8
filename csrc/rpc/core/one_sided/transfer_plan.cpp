#include "rpc/core/one_sided/transfer_plan.hpp"

#include <string>

namespace axon::rpc {

Result<TransferPlan> TransferPlan::make(LocalBlocks local, RemoteBlocks remote) {
  if (local.length() && remote.length() && local.length() != remote.length()) {
    return Status(ErrorCode::kInvalidArgument, "plan: local blocks have " + std::to_string(*local.length()) +
                                                   " bytes, and remote ones " + std::to_string(*remote.length()) +
                                                   "; allowed: equal lengths");
  }
  return TransferPlan(std::move(local), std::move(remote));
}

static Status out_of_range(const char* side, size_t position, int32_t id, uint64_t count) {
  return {ErrorCode::kInvalidArgument, "post: " + std::string(side) + "_ids[" + std::to_string(position) + "] is " +
                                           std::to_string(id) + "; allowed: 0 to " + std::to_string(count) +
                                           ", exclusive"};
}

static Status differ_in_length(size_t position, uint64_t local, uint64_t remote) {
  return {ErrorCode::kInvalidArgument, "post: pair " + std::to_string(position) + " is a local block of " +
                                           std::to_string(local) + " bytes and a remote one of " +
                                           std::to_string(remote) + "; allowed: equal lengths"};
}

Status TransferPlan::check(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids) const {
  if (local_ids.size() != remote_ids.size()) {
    return {ErrorCode::kInvalidArgument, "post: " + std::to_string(local_ids.size()) + " local and " +
                                             std::to_string(remote_ids.size()) +
                                             " remote ids; allowed: as many of both"};
  }
  for (size_t i = 0; i < local_ids.size(); ++i) {  // a negative one becomes too large
    const auto local = static_cast<uint64_t>(local_ids[i]);
    const auto remote = static_cast<uint64_t>(remote_ids[i]);
    if (local >= local_.size()) return out_of_range("local", i, local_ids[i], local_.size());
    if (remote >= remote_.size()) return out_of_range("remote", i, remote_ids[i], remote_.size());
    if (local_[local].num_bytes != remote_[remote].num_bytes) {
      return differ_in_length(i, local_[local].num_bytes, remote_[remote].num_bytes);
    }
  }
  return {};
}

std::vector<std::shared_ptr<RemoteMemory>> TransferPlan::memories_of(std::span<const int32_t> remote_ids) const {
  const auto& memories = remote_.memories();
  std::vector<bool> is_used(memories.size());
  for (const int32_t id : remote_ids) is_used[remote_[static_cast<size_t>(id)].memory] = true;
  std::vector<std::shared_ptr<RemoteMemory>> used;
  for (size_t i = 0; i < memories.size(); ++i) {
    if (is_used[i]) used.push_back(memories[i]);
  }
  return used;
}

Status TransferPlan::add_to(Transfer& transfer, std::span<const int32_t> local_ids,
                            std::span<const int32_t> remote_ids) const {
  AXON_TRY(check(local_ids, remote_ids));
  add_checked_to(transfer, local_ids, remote_ids);
  return {};
}

void TransferPlan::add_checked_to(Transfer& transfer, std::span<const int32_t> local_ids,
                                  std::span<const int32_t> remote_ids) const {
  transfer.reserve(local_ids.size());
  for_each(local_ids, remote_ids,
           [&](const std::shared_ptr<RemoteMemory>& remote, uint64_t offset, const LocalBlocks::Block& local) {
             transfer.add(remote, offset, {.data = local.data, .num_bytes = local.num_bytes});
           });
}

}  // namespace axon::rpc
