// The loopback interface in the address of a peer on another host, and why UCX must not see it.
//
// UCX (1.22: ucs_get_system_id) takes a peer with this host's boot id, and with this network namespace's number, for
// one of this host, and connects to it by 127.0.0.1. Machines that were cloned from one snapshot have these in common:
// each would connect to itself.
#pragma once

#include <cstddef>
#include <span>

namespace axon::transport {

// Changes this host's id, wherever it stands in the peer's packed address, into that of no host, so that UCX passes
// over the loopback interface there. Other devices are not marked by it.
void hide_loopback(std::span<std::byte> address) noexcept;

// Whether an address that UCX has packed here names an interface of this host other than its loopback.
bool names_another_interface(std::span<const std::byte> address) noexcept;

}  // namespace axon::transport
