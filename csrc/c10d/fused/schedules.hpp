// Matrix products beside the communication that they need: what torch.ops.axon's operators run, once their arguments
// are checked. All are collectives of the group.
#pragma once

#include <vector>

#include "c10d/backend.hpp"
#include "c10d/fused/products.hpp"

namespace axon {

struct AllGatherMatmul {
  AxonBackend& backend;
  RowPartition rows;
  Rows x;  // this rank's
  std::vector<Weight> weights;
  bool returns_gathered = true;
};

struct GatheredProducts {
  at::Tensor gathered;  // x of all ranks, or of no rows if not wanted
  std::vector<at::Tensor> outputs;
};

// The own rows are multiplied while those of the other ranks are on their way.
GatheredProducts run(const AllGatherMatmul& call);

struct MatmulReduceScatter {
  AxonBackend& backend;
  RowPartition rows;
  Rows x;         // of all ranks' rows
  Weight weight;  // its bias is added to the result
  c10d::ReduceOp reduction;
};

// This rank's rows of the sum (or average) of all ranks' products.
at::Tensor run(const MatmulReduceScatter& call);

}  // namespace axon
