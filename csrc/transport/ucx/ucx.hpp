// The transport over UCX: Active Messages of one UCP worker, with one endpoint per peer process.
//
//   Result<std::unique_ptr<Transport>> transport = open_ucx_transport();
//
// UCX reads its own environment, such as UCX_TLS. AXON_UCX_TLS applies to this engine alone and takes precedence. The
// caller owns the transport; its thread rule is Transport's. UCX's libraries are loaded when it is first used.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

struct UcxOptions {
  // UCX settings that take precedence over the environment, without the prefix UCX_: {"TLS", "tcp"}.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Sets the folder of the wheel's libraries. UCX is then loaded from there, with settings that suit the wheel's
// transports. Call it before UCX is first used, if at all. Without it, the dynamic loader searches for UCX: in the
// program's RPATH, in LD_LIBRARY_PATH, and in the system's folders.
void use_ucx_of_wheel(std::string folder);

// Loads UCX and returns its version.
Result<std::string> ucx_version();

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options = {});

}  // namespace axon::transport
