// Says whether UCX has a network other than TCP.
//
//   Result<std::vector<Lane>> found = rdma_lanes();
//   if (found.ok() && !found.value().empty()) …      // "rc_mlx5" over "mlx5_0:1"
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "transport/transport.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::transport {

// Returns the lanes that UCX offers over this host's RDMA devices: those with a port that is up, which UCX's settings
// allow. UCX is not initialised on hosts without such devices, and opens no port here.
Result<std::vector<Lane>> rdma_lanes(const UcxOptions& options = {});

// Its parts, for tests: the names of this host's RDMA devices, all lanes that UCX offers, and those over devices.
std::vector<std::string> rdma_devices();
Result<std::vector<Lane>> lanes_of_ucx(const UcxOptions& options = {});
std::vector<Lane> lanes_in(std::string_view context_info);
std::vector<Lane> lanes_over(std::span<const std::string> devices, std::span<const Lane> lanes);

}  // namespace axon::transport
