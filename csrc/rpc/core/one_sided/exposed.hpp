// What a runtime exposes to its peers, and what they have notified it of.
#pragma once

#include "rpc/core/one_sided/ended_grants.hpp"
#include "rpc/core/one_sided/notifications.hpp"
#include "rpc/core/one_sided/region.hpp"

namespace axon::rpc {

struct Exposed {
  explicit Exposed(engine::Engine& engine) noexcept : regions(engine), ended_grants(engine, regions) {}

  Regions regions;
  EndedGrants ended_grants;
  Notifications notifications;
  size_t num_pending_bytes = 0;  // of the tags of all connections that wait for their data; progress owner only
};

}  // namespace axon::rpc
