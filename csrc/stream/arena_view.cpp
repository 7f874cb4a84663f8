#include "stream/arena_view.hpp"

#include <string>
#include <utility>

#include "comm/peer_card.hpp"

namespace axon {

Result<ArenaView> ArenaView::import(const DeviceCard& card, int device) {
  if (card.host != this_host()) {
    return Status(ErrorCode::kInvalidArgument, "its process runs on another host or in other namespaces");
  }
  Result<PeerProcess> process = PeerProcess::open(card.pid);
  if (!process.ok()) return std::move(process.status());
  Result<FileDescriptor> descriptor = process.value().fetch(card.descriptor);
  if (!descriptor.ok()) return std::move(descriptor.status());
  Result<SharedMemory> memory = SharedMemory::import(device, descriptor.value(), card.arena_num_bytes);
  if (!memory.ok()) return std::move(memory.status());
  ArenaView view(memory.value().data());
  view.memory_ = std::move(memory).value();
  view.process_ = std::move(process).value();
  return view;
}

}  // namespace axon
