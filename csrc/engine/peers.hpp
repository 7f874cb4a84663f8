// The processes that an engine knows: each once, however many groups and connections share it. A process of another
// host that was lost is not known any more. It may be back when it is met again, as another peer.
//
//   if (const auto known = peers.find(peer_address.process)) return *known;
//   Result<transport::PeerId> added = peers.add(peer_address);
//   peers.shares_host(added.value());
//
// Owned by the engine. Progress owner only, except for own_address().
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "engine/host_beacon.hpp"
#include "engine/peer_address.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

class Peers {
 public:
  using ProcessId = std::array<uint64_t, 2>;

  Peers(transport::Transport& transport, uint64_t host);

  // This process's address, except for the key.
  const PeerAddress& own_address() const noexcept { return own_address_; }

  std::optional<transport::PeerId> find(const ProcessId& process) const noexcept;
  // Adds a process that is not known yet.
  Result<transport::PeerId> add(const PeerAddress& peer_address);
  size_t num_known() const noexcept { return num_known_; }

  // Returns whether the peer has proven that it is on this host. Such a peer shares the kernel and the namespaces of
  // processes, network and shared memory, and its pid is valid here.
  bool shares_host(transport::PeerId peer) const noexcept { return peers_[peer].shares_host; }
  // Returns whether the peer is another process of this host.
  bool is_neighbour(transport::PeerId peer) const noexcept {
    return shares_host(peer) && pid_of(peer) != own_address_.pid;
  }
  const PeerAddress& address_of(transport::PeerId peer) const noexcept { return peers_[peer].address; }
  int32_t pid_of(transport::PeerId peer) const noexcept { return peers_[peer].address.pid; }
  // Returns the number of known processes of this host, this one excluded, that are not lost.
  int num_neighbours() const noexcept { return num_neighbours_; }
  // Returns whether these processes and this one outnumber the cores on which this one may run.
  bool outnumber_cores() const noexcept;

  // Connects to a peer of another host, so that its end is noticed. Does nothing if it has been called before.
  Status watch(transport::PeerId peer);
  bool is_watched(transport::PeerId peer) const noexcept { return peers_[peer].is_watched; }

  // Records that a peer is gone. At most once per peer. find() finds no process of another host from then on.
  void note_loss(transport::PeerId peer);

  // Checks whether enough file descriptors are left for this many new peers and for all known ones. A process that runs
  // out of them within UCX cannot recover. The listener closes for good at the first connection that it cannot accept
  // (UCX 1.22).
  Status check_room(size_t num_new_peers) const;
  // Returns how many file descriptors that takes.
  size_t num_descriptors_for(size_t num_new_peers) const noexcept;
  // Like check_room(), for those of the addresses that are not known yet, or are on other hosts and not watched.
  Status check_room_for(std::span<const PeerAddress> addresses) const;

  // Other processes can no longer tell that this one is on their host.
  void hide() noexcept { beacon_.reset(); }

 private:
  struct Peer {
    PeerAddress address;
    bool shares_host = false;
    bool is_watched = false;
    bool is_forgotten = false;  // lost, and on another host
  };
  static constexpr transport::PeerId kNoPeer = UINT32_MAX;

  void note_neighbours(int number) noexcept;

  size_t slot_of(const ProcessId& process) const noexcept;
  void make_slots(size_t number);
  void light_beacon();
  bool is_here(const PeerAddress& peer_address) const;

  transport::Transport& transport_;
  PeerAddress own_address_;
  std::optional<HostBeacon> beacon_;  // empty: other processes cannot tell that this one is on their host
  std::vector<Peer> peers_;           // by PeerId
  // A hash table of peers_ by process: the latest peer of each, or kNoPeer. At most half of the slots are used.
  std::vector<transport::PeerId> slots_;
  size_t num_slots_used_ = 0;
  size_t num_known_ = 0;
  int num_neighbours_ = 0;
};

}  // namespace axon::engine
