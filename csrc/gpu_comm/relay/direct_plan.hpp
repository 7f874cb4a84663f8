// The plan of an operation that the engine runs on all of its tensors, among all ranks of the group.
#pragma once

#include <memory>

#include "engine/operation.hpp"
#include "gpu_comm/relay/division.hpp"
#include "gpu_comm/relay/plan.hpp"

namespace axon::gpu_comm {

// The operation's arguments are in device memory. `rank`: this rank among `num_ranks`.
std::unique_ptr<RelayPlan> direct_plan(const engine::Operation& operation, int rank, int num_ranks);

// How a collective's tensors are divided if `num_columns` ranks of each host share the transfers between hosts.
Division division_of(const engine::Operation& operation, int num_ranks, int num_columns = 1) noexcept;

// How long kernels wait for the engine, which ends an operation with this timeout earlier, and says why.
std::chrono::nanoseconds longest_wait_of(std::chrono::milliseconds timeout) noexcept;

}  // namespace axon::gpu_comm
