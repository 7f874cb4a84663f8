// The transport over rails that carry whole messages: one authenticated TCP connection per peer process, without UCX.
//
//   Result<SocketNetwork> sockets = open_sockets(devices);
//   with_rails(std::move(sockets.value().transport), {.port = sockets.value().port});   // stripes, at the same port
//
// The caller owns the transport; its thread rule is Transport's. Why: docs/adr/0044-carry-all-messages-over-rails.md.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

class RailHandshakes;

struct SocketNetwork {
  std::unique_ptr<Transport> transport;
  RailHandshakes* port = nullptr;  // the transport's; RailOptions::port of a layer above it
};

// Returns what precedes the address of sockets at the end of another one; empty if nothing does, or if there is none.
std::span<const std::byte> preceding_sockets(std::span<const std::byte> address) noexcept;

// Opens a port at the named devices, or at all of this host. A host without others has only its loopback device.
Result<SocketNetwork> open_sockets(std::span<const std::string> devices = {});

}  // namespace axon::transport
