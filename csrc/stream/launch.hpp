// From an operation's arguments to the calls of the kernels.
#pragma once

#include <span>

#include "base/status.hpp"
#include "comm/operation.hpp"
#include "cuda/device_types.hpp"
#include "cuda/stream.hpp"
#include "stream/segments/segments.hpp"
#include "stream/selector.hpp"

namespace axon {

// What the selector asks about an operation of a group of so many ranks.
KernelQuery query_of(const Operation& operation, int num_ranks) noexcept;

// Enqueues a collective with the kernel chosen for it. Its tensors are found in `segments`, of the same device.
Status launch_collective(const DeviceTeam& team, Segments& segments, Kernel kernel, const Operation& operation,
                         StreamView stream);

// Enqueues sends and receives. Those of different peers and directions run at the same time; several to (or from) one
// peer one after the other, in this order. Large ones are written into tensors found in `segments`.
Status launch_messages(const DeviceTeam& team, Segments& segments, std::span<const Operation* const> messages,
                       StreamView stream);

}  // namespace axon
