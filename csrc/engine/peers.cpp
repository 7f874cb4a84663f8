#include "engine/peers.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/copy_threads.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "base/resources.hpp"

namespace axon::engine {

// Per peer: its pidfd, and either its doorbell and a ring that is not read yet, or two sockets.
static constexpr size_t kDescriptorsOfAPeer = 3;
// For descriptors that are open for a moment only: rings being mapped, connections being accepted, files of the
// program.
static constexpr size_t kSpareDescriptors = 8;

// The numbers of processes are random, so they serve as their hashes.
static constexpr size_t kFewestSlots = 16;

Peers::Peers(transport::Transport& transport, uint64_t host)
    : transport_(transport),
      own_address_{.key = 0,
                   .process = {random_number(), random_number()},
                   .host = host,
                   .pid = getpid(),
                   .transport_address = {}} {
  const std::span<const std::byte> address = transport_.address();
  own_address_.transport_address.assign(address.begin(), address.end());
  light_beacon();
}

void Peers::light_beacon() {
  Result<HostBeacon> beacon = HostBeacon::light(own_address_.process);
  if (beacon.ok()) {
    beacon_.emplace(std::move(beacon).value());
  } else {
    log::warn("messages between processes of this host take the network: " + beacon.status().message());
  }
}

std::optional<transport::PeerId> Peers::find(const ProcessId& process) const noexcept {
  if (slots_.empty()) return std::nullopt;
  const transport::PeerId known = slots_[slot_of(process)];
  return known == kNoPeer || peers_[known].is_forgotten ? std::nullopt : std::optional(known);
}

// Returns the slot of this process, or the free one that it would take.
size_t Peers::slot_of(const ProcessId& process) const noexcept {
  for (size_t slot = process[0] % slots_.size();; slot = (slot + 1) % slots_.size()) {
    if (slots_[slot] == kNoPeer || peers_[slots_[slot]].address.process == process) return slot;
  }
}

void Peers::make_slots(size_t number) {
  const std::vector<transport::PeerId> before = std::exchange(slots_, std::vector(number, kNoPeer));
  for (const transport::PeerId peer : before) {
    if (peer != kNoPeer) slots_[slot_of(peers_[peer].address.process)] = peer;
  }
}

Result<transport::PeerId> Peers::add(const PeerAddress& peer_address) {
  const bool same_host = is_here(peer_address);
  Result<transport::PeerId> added = transport_.add_peer(peer_address.transport_address, same_host);
  if (!added.ok()) return added;
  const transport::PeerId peer = added.value();
  if (2 * (num_slots_used_ + 1) > slots_.size()) make_slots(std::max(kFewestSlots, 2 * slots_.size()));
  peers_.resize(std::max<size_t>(peers_.size(), peer + 1));
  peers_[peer].address = peer_address;
  peers_[peer].shares_host = same_host;
  transport::PeerId& slot = slots_[slot_of(peer_address.process)];
  if (slot == kNoPeer) ++num_slots_used_;
  slot = peer;
  ++num_known_;
  if (is_neighbour(peer)) note_neighbours(num_neighbours_ + 1);
  return peer;
}

bool Peers::outnumber_cores() const noexcept {
  return static_cast<size_t>(num_neighbours_) >= num_cores();
}

Status Peers::watch(transport::PeerId peer) {
  if (peers_[peer].is_watched) return Status();
  AXON_TRY(transport_.watch_peer(peer));
  peers_[peer].is_watched = true;
  return Status();
}

// The end of a neighbour is certain. A process of another host may only have been unreachable.
void Peers::note_loss(transport::PeerId peer) {
  if (is_neighbour(peer)) return note_neighbours(num_neighbours_ - 1);
  if (std::exchange(peers_[peer].is_forgotten, true)) return;
  --num_known_;
}

void Peers::note_neighbours(int number) noexcept {
  num_neighbours_ = number;
  CopyThreads::instance().set_num_processes(static_cast<size_t>(number) + 1);
}

size_t Peers::num_descriptors_for(size_t num_new_peers) const noexcept {
  size_t num_wanted = kSpareDescriptors + num_new_peers * kDescriptorsOfAPeer;
  for (transport::PeerId peer = 0; peer < peers_.size(); ++peer) num_wanted += transport_.num_descriptors_to_come(peer);
  return num_wanted;
}

Status Peers::check_room(size_t num_new_peers) const {
  return check_descriptors(num_descriptors_for(num_new_peers),
                           num_new_peers == 0 ? "serve another connection" : "meet another process");
}

// One check for all of them, since the descriptors still to be opened are summed over all peers.
Status Peers::check_room_for(std::span<const PeerAddress> addresses) const {
  const auto takes_descriptors = [this](const PeerAddress& peer_address) {
    const std::optional<transport::PeerId> known = find(peer_address.process);
    return !known || (!shares_host(*known) && !peers_[*known].is_watched);
  };
  const auto num_new = static_cast<size_t>(std::ranges::count_if(addresses, takes_descriptors));
  return num_new == 0 ? Status() : check_room(num_new);
}

// The host in the address is only a claim: hosts cloned from one snapshot have the same identity. A peer without proof
// counts as being on another host and is reached by the network, which reports its end itself.
bool Peers::is_here(const PeerAddress& peer_address) const {
  if (peer_address.process == own_address_.process) return true;
  if (peer_address.host != own_address_.host || !beacon_) return false;
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
