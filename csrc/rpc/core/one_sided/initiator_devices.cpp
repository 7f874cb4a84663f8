// What devices of this process do for the initiator's transfers.
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/initiator.hpp"

namespace axon::rpc {

// Those of a failed transfer, too: a device may have begun to copy before.
void Initiator::begin_device_works(Transfer& transfer) noexcept {
  for (const std::unique_ptr<DeviceWork>& work : transfer.device_works_) work->begin();
}

void Initiator::on_device_end(Transfer& transfer, Status status) noexcept {
  --transfer.num_device_works_left_;
  --transfer.num_in_flight_;
  if (transfer.is_final_) return release_drained();
  status.ok() ? advance(transfer) : finish(transfer, std::move(status));
}

bool Initiator::begin_use(RemoteMemory& memory) noexcept {
  if (!uses_.enter()) return false;
  if (memory.uses().enter()) return true;
  uses_.leave();  // the connection asks from time to time whether it is empty
  return false;
}

void Initiator::end_use(RemoteMemory& memory) noexcept {
  if (memory.uses().leave()) {
    memory.unmap();
    send({.kind = transport::MessageKind::kRevoked, .grant = memory.number()});
  }
  uses_.leave();
}

}  // namespace axon::rpc
