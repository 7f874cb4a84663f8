// Opens the transport of the process's engine, as the environment and this system allow: rings on top of rails, on top
// of sockets, of UCX, or of both (AXON_TRANSPORTS). The caller owns it.
//
//   Result<std::unique_ptr<transport::Transport>> network = open_network();
#pragma once

#include <memory>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

Result<std::unique_ptr<transport::Transport>> open_network();

}  // namespace axon::engine
