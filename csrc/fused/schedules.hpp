// Matrix products fused with the communication that they need. torch.ops.axon's operators call these after they have
// checked their arguments. All are collectives of the group.
#pragma once

#include <vector>

#include "c10d/backend.hpp"
#include "fused/products.hpp"

namespace axon::fused {

struct AllGatherMatmul {
  c10d_backend::AxonBackend& backend;
  RowPartition rows;
  Rows x;  // this rank's rows
  std::vector<Weight> weights;
  bool returns_gathered = true;
};

struct GatheredProducts {
  at::Tensor gathered;  // x of all ranks, or without rows if not wanted
  std::vector<at::Tensor> outputs;
};

// The results of such a call while they are computed.
class GatheringProducts {
 public:
  explicit GatheringProducts(const AllGatherMatmul& call);
  // Multiplies the rows, which lie at `range` in the whole, with all weights.
  void multiply(const Rows& rows, RowRange range);
  // Rows of the product with one of the weights.
  at::Tensor output_rows(size_t weight, RowRange range) const { return slice_rows(outputs_[weight], range); }
  // The caller's memory for these rows of x.
  at::Tensor gathered_rows(RowRange range) const { return slice_rows(gathered_, range); }
  GatheredProducts finish() && { return {.gathered = std::move(gathered_), .outputs = std::move(outputs_)}; }

 private:
  const AllGatherMatmul& call_;
  at::Tensor gathered_;
  std::vector<at::Tensor> outputs_;
};

// Multiplies this rank's own rows while the other ranks' rows arrive, if that is faster.
GatheredProducts run(const AllGatherMatmul& call);

struct MatmulReduceScatter {
  c10d_backend::AxonBackend& backend;
  RowPartition rows;
  Rows x;         // rows of all ranks
  Weight weight;  // its bias is added to the result
  c10d::ReduceOp reduction;
};

// Returns this rank's rows of the sum (or average) of all ranks' products.
at::Tensor run(MatmulReduceScatter call);

}  // namespace axon::fused
