// The transport that the process's engine uses, with what the environment and this system leave it: rings, above
// fragments, above UCX.
#pragma once

#include <memory>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

Result<std::unique_ptr<transport::Transport>> open_network();

}  // namespace axon::engine
