// Keeps the memory of a region while a transfer of the same runtime uses it as local memory.
//
//   Result<Owner> use = use_region(engine, exposed, region);   // fails if the region is closed
//   transfer->keep(std::move(use).value());
//
// The region is not at rest until the owner is released. Any thread.
#pragma once

#include <memory>

#include "rpc/core/one_sided/exposed.hpp"

namespace axon::rpc {

// `exposed` has the region.
Result<Owner> use_region(engine::Engine& engine, const std::shared_ptr<Exposed>& exposed,
                         const std::shared_ptr<Region>& region);

}  // namespace axon::rpc
