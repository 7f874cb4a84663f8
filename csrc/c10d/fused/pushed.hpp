// Schedules for CUDA tensors whose data copy engines move beside the products: from this rank's memory into the peers'
// workspaces, on a stream of the group's. Nothing is returned, and nothing has been done, where the ranks are to
// communicate first: too little to move, no workspace so large, or GPUs that do not reach each other. All ranks decide
// alike: by what all of them know.
//
//   current stream   meet │ own rows × weights ········ │ the others' × weights
//   group's stream        │ push to each peer │ meet ───┘ copies for the caller
//
// Behind the first meeting nobody uses the workspaces any more; behind the second all is there.
#pragma once

#include <optional>

#include "c10d/fused/schedules.hpp"

namespace axon {

std::optional<GatheredProducts> run_pushed(const AllGatherMatmul& call);

// The peers' rows are multiplied first, the next rank's at once, and pushed block by block while the next one is
// multiplied; the partial results of all ranks are summed in their accumulation type, and rounded once.
std::optional<at::Tensor> run_pushed(const MatmulReduceScatter& call);

}  // namespace axon
