// Schedules for CUDA tensors whose data copy engines move beside the products: from this rank's memory into the peers'
// workspaces, on streams of the group's. Nothing is returned, and nothing has been done, where the ranks are to
// communicate first: too little to move, no workspace so large, or GPUs that do not reach each other. All ranks decide
// alike: by what all of them know.
//
//   current stream    meet │ own rows × weights ············ │ the others' × weights
//   pushing stream         │ push to each peer, tell it │ copy for the caller
//   awaiting stream        │ await ························· ┘ copy for the caller
//
// Behind the barrier, a kernel, nobody uses the workspaces any more. That data has come is told by words which streams
// write and wait for: a kernel would find no room beside a product.
#pragma once

#include <optional>

#include "fused/schedules.hpp"

namespace axon::fused {

std::optional<GatheredProducts> run_pushed(const AllGatherMatmul& call);

// The peers' rows are multiplied first, the next rank's at once, and pushed piece by piece while the next one is
// multiplied. Of two ranks, each then adds its own products to what has come, in the products' accumulation; of more,
// the partial results of all are summed in their accumulation type. The sum is rounded once. The weight has no bias.
std::optional<at::Tensor> run_pushed(const MatmulReduceScatter& call);

}  // namespace axon::fused
