// The reconfigure handle of a process: a line of text with its address, by which other processes make it a member of
// their group. The user passes it on, for example through a store or a coordinator.
//
//   axon:<rank in the job>:<host>:<address, in hexadecimal digits>
//
// It stays the same for the life of the group's object. Sorted as texts, handles are in the order of the ranks.
#pragma once

#include <string>

#include "engine/peer_address.hpp"

namespace axon::c10d_backend {

struct MemberHandle {
  int global_rank = 0;  // when the handle was made
  std::string host;     // for messages
  engine::PeerAddress address;

  std::string encode() const;
  // The error says why the text is not a handle, or which version of torch_axon has made it.
  static Result<MemberHandle> decode(const std::string& text);

  // "process 4711 on host-a"
  std::string describe() const;
};

// Returns the name of this host, without characters that a handle cannot hold.
std::string own_host_name();

}  // namespace axon::c10d_backend
