// Shared code of the programs whose instructions are counted.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/host_id.hpp"
#include "engine/engine.hpp"
#include "transport/rings/rings.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// Limits UCX to its transports within a host, so that the count does not depend on the machine's network devices.
inline std::unique_ptr<engine::Engine> make_engine(transport::RingUse use) {
  Result<std::unique_ptr<transport::Transport>> network =
      transport::open_ucx_transport({.settings = {{"TLS", "posix,self"}, {"POSIX_FIFO_ELEM_SIZE", "256"}}});
  require(network.ok(), "UCX cannot be opened");
  return std::make_unique<engine::Engine>(with_rings(std::move(network).value(), use), this_host(),
                                          collectives::AlgorithmOverrides());
}

}  // namespace axon
