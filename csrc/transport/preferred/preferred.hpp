// Joins two networks: one that all processes have, and one that is preferred, which only some of them have. Two
// processes of different hosts use the preferred one if both have it and it connects them.
//
//   Result<std::unique_ptr<Transport>> joined = with_preferred(std::move(ucx), std::move(sockets));
//
// A process that has only the common network uses that alone, without this layer: its peers find out by its address.
// The returned transport owns both; its thread rule is Transport's. Why:
// docs/adr/0052-carry-all-messages-over-rails-by-default.md.
#pragma once

#include <memory>

#include "base/status.hpp"
#include "transport/sockets/sockets.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

Result<std::unique_ptr<Transport>> with_preferred(std::unique_ptr<Transport> preferred, SocketNetwork common);

}  // namespace axon::transport
