// Hides the loopback interface in the address of a peer on another host from UCX. Stateless; any thread,
// once UCX is loaded.
//
//   if (names_another_interface(own_address)) hide_loopback(peer_address);
//
// UCX (1.22: ucs_get_system_id) treats a peer as local if it has this host's boot id and this network namespace's
// number, and connects to it by 127.0.0.1. Machines cloned from one snapshot have both in common, so that each would
// connect to itself.
#pragma once

#include <cstddef>
#include <span>

namespace axon::transport {

// Replaces this host's id, wherever it occurs in the peer's packed address, with an id that no host has. UCX then
// passes over the loopback interface there. Other devices do not carry the id.
void hide_loopback(std::span<std::byte> address) noexcept;

// Returns whether an address that UCX has packed here names an interface of this host other than its loopback.
bool names_another_interface(std::span<const std::byte> address) noexcept;

}  // namespace axon::transport
