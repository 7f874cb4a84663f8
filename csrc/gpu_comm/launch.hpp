// Translates an operation's arguments into kernel calls. Stateless; DeviceGroup holds its lock around a launch.
#pragma once

#include <span>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/stream.hpp"
#include "engine/operation.hpp"
#include "gpu_comm/local_team.hpp"
#include "gpu_comm/selector.hpp"
#include "ipc/registrations/registrations.hpp"
#include "kernels/zero_copy/collectives.hpp"

namespace axon::gpu_comm {

// Returns the selector's query for an operation of a team of `num_ranks` ranks.
KernelQuery query_of(const engine::Operation& operation, int num_ranks) noexcept;

// The environment of a launch. Tensors are looked up in `registrations`, which belong to the same device.
struct LaunchContext {
  const cuda::DeviceTeam& team;
  ipc::Registrations& registrations;
  cuda::StreamView stream;
  kernels::Beside beside = kernels::Beside::kNothing;
  Kernel wanted = Kernel::kNone;  // for messages; see select_kernel()
};

// Enqueues a collective with the selected kernel. Its shards and its root are numbered by local index.
Status launch_collective(const LaunchContext& context, Kernel kernel, const engine::Operation& operation);

// Enqueues sends and receives, whose peers are ranks of the group on this host. Those of different peers and directions
// run at the same time. Several to (or from) one peer run one after the other, in this order.
Status launch_messages(const LaunchContext& context, const LocalTeam& ranks,
                       std::span<const engine::Operation* const> messages);

// A collective of one rank: copies its input to its output, if it has both and they differ.
Status copy_own_shard(const collectives::CollectiveArguments& arguments, cuda::StreamView stream);

}  // namespace axon::gpu_comm
