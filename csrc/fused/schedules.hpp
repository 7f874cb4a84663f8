// Matrix products beside the communication that they need: what torch.ops.axon's operators run, once their arguments
// are checked. All are collectives of the group.
#pragma once

#include <vector>

#include "c10d/backend.hpp"
#include "fused/products.hpp"

namespace axon::fused {

struct AllGatherMatmul {
  c10d_backend::AxonBackend& backend;
  RowPartition rows;
  Rows x;  // this rank's
  std::vector<Weight> weights;
  bool returns_gathered = true;
};

struct GatheredProducts {
  at::Tensor gathered;  // x of all ranks, or of no rows if not wanted
  std::vector<at::Tensor> outputs;
};

// What such a call returns, as it comes to be.
class GatheringProducts {
 public:
  explicit GatheringProducts(const AllGatherMatmul& call);
  // Of the rows, which are these of the whole, with all weights.
  void multiply(const Rows& rows, RowRange range);
  // The product with one of the weights.
  at::Tensor output_rows(size_t weight, RowRange range) const { return slice_rows(outputs_[weight], range); }
  // Where the caller gets these rows of x.
  at::Tensor gathered_rows(RowRange range) const { return slice_rows(gathered_, range); }
  GatheredProducts finish() && { return {.gathered = std::move(gathered_), .outputs = std::move(outputs_)}; }

 private:
  const AllGatherMatmul& call_;
  at::Tensor gathered_;
  std::vector<at::Tensor> outputs_;
};

// The own rows are multiplied while those of the other ranks are on their way, where that pays.
GatheredProducts run(const AllGatherMatmul& call);

struct MatmulReduceScatter {
  c10d_backend::AxonBackend& backend;
  RowPartition rows;
  Rows x;         // of all ranks' rows
  Weight weight;  // its bias is added to the result
  c10d::ReduceOp reduction;
};

// This rank's rows of the sum (or average) of all ranks' products.
at::Tensor run(MatmulReduceScatter call);

}  // namespace axon::fused
