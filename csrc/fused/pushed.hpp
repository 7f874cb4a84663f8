// Schedules for CUDA tensors whose data the copy engines move while products run. They copy from this rank's memory
// into the peers' workspaces, on streams of the group. If the ranks should communicate first, a function here returns
// nothing and has no effect. That is the case if the data is too small, the workspace cannot be allocated, or the GPUs
// have no peer access. All ranks decide the same, from values that all of them know.
//
//    current stream    barrier │ own rows × weights ············ │ the others' × weights
//    pushing stream            │ push to each peer, tell it │ copy for the caller
//    awaiting stream           │ await ························· ┘ copy for the caller
//
// Following the barrier, which is a kernel, no rank uses the workspaces any more. Streams write and wait for flags to
// signal the arrival of data: a kernel would find no free SM during a product.
#pragma once

#include <optional>

#include "fused/schedules.hpp"

namespace axon::fused {

std::optional<GatheredProducts> run_pushed(const AllGatherMatmul& call);

// Multiplies the peers' rows first, beginning with the next rank's, and pushes each tile while the next one is
// multiplied. In a group of two, each rank then adds its own products to the received ones, in the products'
// accumulator. In larger groups, the partial results of all ranks are summed in their accumulation type. The sum is
// rounded once. The weight has no bias.
std::optional<at::Tensor> run_pushed(const MatmulReduceScatter& call);

}  // namespace axon::fused
