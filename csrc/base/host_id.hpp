// The identity that a host claims. It is a claim, not a proof: see engine/host_beacon.hpp.
#pragma once

#include <cstdint>

namespace axon {

// Returns the same number in two processes that share a kernel and the pid, network and ipc namespaces. Machines cloned
// from one snapshot return the same number, too.
uint64_t this_host();

}  // namespace axon
