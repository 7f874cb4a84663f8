// The transport over UCX: Active Messages of one UCP worker, one endpoint a peer process.
//
//   Result<std::unique_ptr<Transport>> transport = open_ucx_transport();
//
// UCX reads its own environment: UCX_TLS, and AXON_UCX_TLS for this engine alone, which wins.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

struct UcxOptions {
  // UCX settings that win over the environment, without their UCX_: {"TLS", "tcp"}.
  std::vector<std::pair<std::string, std::string>> settings;
};

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options = {});

}  // namespace axon::transport
