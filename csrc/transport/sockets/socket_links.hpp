// The links of SocketTransport: to its peers, and to processes that have connected before they were added as peers.
//
//   SocketLink& link = links.make(name);
//   const PeerId peer = links.number(link);
//   links.of(peer).loss = …;
//   links.note_loss();
//   links.free_lost();            // later, when nothing is within a call for the link
//
// Owns the links. The progress owner calls everything.
#pragma once

#include <list>
#include <unordered_map>
#include <vector>

#include "transport/rails/recent_names.hpp"
#include "transport/sockets/socket_link.hpp"

namespace axon::transport {

class SocketLinks {
 public:
  explicit SocketLinks(uint64_t own_name);

  // Returns the link of a peer. If it has been freed, returns one of no process, lost for the same reason.
  SocketLink& of(PeerId peer) noexcept { return *peers_[peer]; }
  const SocketLink& of(PeerId peer) const noexcept { return *peers_[peer]; }
  // Returns the latest link to the transport of this name; null if there is none.
  SocketLink* find(uint64_t name) const noexcept;
  // Returns whether the transport of this name was lost before any rail connected it. If so, it counts as connected
  // from now on.
  bool was_lost_unconnected(uint64_t name);
  SocketLink& make(uint64_t name);
  // Makes the link that of the next peer, and returns the peer's number.
  PeerId number(SocketLink& link);

  std::list<SocketLink>& all() noexcept { return links_; }
  size_t size() const noexcept { return links_.size(); }

  // A link was lost, or a lost one has fewer messages.
  void note_loss() noexcept { may_free_ = true; }
  // Frees lost links. Messages that the receiver holds refer to theirs until they are fetched or refused.
  void free_lost() noexcept;

 private:
  // Peers whose links are freed share links by the reason of their loss. Beyond this many reasons, the first one stands
  // for all others.
  static constexpr size_t kMostReasons = 64;

  void forget(SocketLink& link) noexcept;
  SocketLink& gone_for(const Status& loss);

  const uint64_t own_name_;
  std::list<SocketLink> links_;
  std::unordered_map<uint64_t, SocketLink*> link_of_;  // by name; the latest one
  std::vector<SocketLink*> peers_;                     // by PeerId
  std::list<SocketLink> gone_;                         // stand for peers whose link has been freed
  // The names of freed links to processes that a rail has ever connected, and of those that none has.
  RecentNames connected_;
  RecentNames unconnected_;
  bool may_free_ = false;
};

}  // namespace axon::transport
