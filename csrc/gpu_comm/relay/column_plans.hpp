// Plans of collectives of GPUs on several hosts. Each host combines its ranks' data by kernels, so that each byte
// crosses the network once. A rank exchanges its part of the data with its column: the ranks of equal local index, one
// on each host (messaging/topology.hpp). Sums are added up by kernels, in the order of the hosts.
//
//   operation        before, within the host      in the column                        after, within the host
//   all_reduce       reduce_scatter               exchange of shares, sum, all_gather  all_gather
//     up to 64 KiB   all_reduce                   all_reduce                           –
//   reduce_scatter   reduce_scatter for each host exchange of shares, sum              –
//   broadcast        scatter, on the root's host  broadcast                            all_gather, on the other hosts
//   all_gather       –                            all_gather                           all_gather for each host
//
// Several segments are in progress at a time, in different stages. If hosts have different numbers of ranks, there are
// as many columns as the smallest host has ranks; all_gather and reduce_scatter have no such plan then. With one rank
// on each host there is one column, and nothing to do within the hosts.
#pragma once

#include <memory>

#include "engine/communicator.hpp"
#include "gpu_comm/device_group.hpp"
#include "gpu_comm/relay/plan.hpp"

namespace axon::gpu_comm {

// Returns whether the collective has such a plan: the same on all ranks. `has_local_links`: see DeviceGroup.
bool has_column_plan(const engine::Operation& operation, const DeviceGroup& group,
                     const engine::Communicator& communicator, bool has_local_links);

// The operation's scope must be Scope::kColumn.
std::unique_ptr<RelayPlan> column_plan(const engine::Operation& operation, DeviceGroup& group,
                                       const engine::Communicator& communicator);

}  // namespace axon::gpu_comm
