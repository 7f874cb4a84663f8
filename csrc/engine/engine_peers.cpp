// The processes to which an engine may connect: whether they are on this host, and whether descriptors are left for
// them.
#include <algorithm>

#include "base/log.hpp"
#include "base/resources.hpp"
#include "engine/engine.hpp"

namespace axon::engine {

// Per peer: its pidfd, and either its doorbell and a ring that is not read yet, or two sockets.
static constexpr size_t kDescriptorsOfAPeer = 3;
// For descriptors that are open for a moment only: rings being mapped, connections being accepted, files of the
// program.
static constexpr size_t kSpareDescriptors = 8;

Status Engine::check_room(size_t num_new_peers) const {
  size_t num_wanted = kSpareDescriptors + num_new_peers * kDescriptorsOfAPeer;
  for (transport::PeerId peer = 0; peer < peers_.size(); ++peer)
    num_wanted += transport_->num_descriptors_to_come(peer);
  return check_descriptors(num_wanted, num_new_peers == 0 ? "serve another connection" : "meet another process");
}

// One check for all of them, since the descriptors still to be opened are summed over all peers.
Status Engine::check_room_for(std::span<const PeerAddress> addresses) const {
  const auto is_new = [this](const PeerAddress& peer_address) { return !peer_of_.contains(peer_address.process); };
  const auto num_new = static_cast<size_t>(std::ranges::count_if(addresses, is_new));
  return num_new == 0 ? Status() : check_room(num_new);
}

Status Engine::check_room_for_group(size_t num_ranks) {
  return progress_->exclusively([&] {
    const size_t num_known = peer_of_.size();  // most likely they are in this group, too; form() checks again
    return check_room(num_ranks > num_known ? num_ranks - num_known : 0);
  });
}

// The host in the address is only a claim: hosts cloned from one snapshot have the same identity. A peer without proof
// counts as being on another host and is reached by the network, which reports its end itself.
bool Engine::is_here(const PeerAddress& peer_address) const {
  if (peer_address.process == address_.process) return true;
  if (peer_address.host != address_.host || !beacon_) return false;
  const Result<bool> seen = HostBeacon::look_for(peer_address.process);
  if (!seen.ok()) {
    log::warn("messages to process " + std::to_string(peer_address.pid) +
              " take the network: " + seen.status().message());
  } else if (!seen.value()) {
    log::info("process " + std::to_string(peer_address.pid) + " claims to be on this host, but has no beacon here");
  }
  return seen.ok() && seen.value();
}

}  // namespace axon::engine
