// Replaces cuda/pushed.cpp in builds with AXON_CUDA=0.
#include "fused/pushed.hpp"

namespace axon::fused {

std::optional<GatheredProducts> run_pushed(const AllGatherMatmul&) {
  return std::nullopt;
}

std::optional<at::Tensor> run_pushed(const MatmulReduceScatter&) {
  return std::nullopt;
}

}  // namespace axon::fused
