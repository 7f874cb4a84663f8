// What a build with AXON_CUDA=0 has in place of cuda/pushed.cpp.
#include "fused/pushed.hpp"

namespace axon::fused {

std::optional<GatheredProducts> run_pushed(const AllGatherMatmul&) {
  return std::nullopt;
}

std::optional<at::Tensor> run_pushed(const MatmulReduceScatter&) {
  return std::nullopt;
}

}  // namespace axon::fused
