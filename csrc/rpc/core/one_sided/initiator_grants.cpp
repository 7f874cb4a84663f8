// The initiator's grants: what they open, by which path it is copied, and their revocation.
#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/direct_copy.hpp"
#include "rpc/core/one_sided/initiator.hpp"
#include "rpc/core/one_sided/local_grant.hpp"

namespace axon::rpc {

using transport::MessageKind;
using transport::OneSidedHeader;

void Initiator::on_grant(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  Slot* const slot = slots_.awaiting(header.number);
  Transfer* const transfer = slot != nullptr ? slot->transfer : nullptr;
  const bool is_wanted = transfer != nullptr && !transfer->is_final_ && transfer->kind_ == Transfer::Kind::kOpen;
  std::optional<GrantInfo> info;
  if (payload.rendezvous == nullptr) info = decode_grant({payload.bytes, payload.num_bytes});
  drop(payload);
  if (is_wanted && info) {
    transfer->opened_ = memory_of(header.grant, std::move(*info));
  } else {
    send({.kind = MessageKind::kRelease, .grant = header.grant});
  }
  if (slot == nullptr) return;
  answer(*slot,
         slot->opens && info ? Status() : Status(ErrorCode::kTransport, "it has answered with an invalid grant"));
  settle(*slot);
}

std::shared_ptr<RemoteMemory> Initiator::memory_of(uint32_t grant, GrantInfo info) {
  std::optional<GrantInfo> local = LocalGrant::take(info.prefix.flag_value);
  const bool is_local = local.has_value();
  if (is_local) info = std::move(*local);
  auto memory = std::make_shared<RemoteMemory>(connection_.shared_from_this(), grant, std::move(info));
  grants_.add(memory);
  if (is_local) memory->set_of_this_process();
  if (memory->is_device()) return memory;  // its user may attach a mapping
  if (is_local) {
    memory->use_own_memory();
  } else if (!maps(*memory) && reads_directly(*memory)) {
    memory->set_path(RemoteMemory::Path::kCma);
  }
  return memory;
}

// A peer states its pid. A lane leads to the process to which its messages go, so memory is used of that one only.
bool Initiator::has_lane(std::string_view name) noexcept {
  if (!connection_.is_neighbour()) return false;
  const auto lanes = connection_.engine().messenger().transport().lanes(peer_);
  const int32_t pid = connection_.engine().peers().pid_of(peer_);
  return lanes.ok() && std::ranges::any_of(lanes.value(), [&](const transport::Lane& lane) {
           return lane.name == name && lane.pid == pid;
         });
}

bool Initiator::maps(RemoteMemory& memory) {
  if (!memory.is_mappable() || !has_lane("ring")) return false;
  const Status why = memory.map_from(connection_.engine().peers().pid_of(peer_));
  if (!why.ok()) {
    log::info("region '" + memory.region() + "' of '" + connection_.identity().name +
              "' is not mapped: " + why.message());
  }
  return why.ok();
}

// The transport has found out whether the kernel permits it between these two processes.
bool Initiator::reads_directly(const RemoteMemory& memory) noexcept {
  if (!has_lane("cma")) return false;
  DirectRead probe(connection_.engine().peers().pid_of(peer_),
                   {.address = memory.flag_address(), .value = memory.flag_value()});
  return probe.run() == CopyOutcome::kCopied;
}

// No copy of the host is under way now, and none of the memory begins later, even if the grant has not arrived yet. If
// devices still copy, the last one of them answers; see end_use().
void Initiator::on_revoke(const OneSidedHeader& header) noexcept {
  if (grants_.revoke(header.grant)) send({.kind = MessageKind::kRevoked, .grant = header.grant});
}

void Initiator::release_grant(uint32_t grant) noexcept {
  grants_.erase(grant);
  send({.kind = MessageKind::kRelease, .grant = grant});
}

}  // namespace axon::rpc
