// The matrix products of one call on CUDA tensors, on the current stream. They run as cuBLASLt kernels that were chosen
// on a hot device (fused/matmul/matrix_products.hpp) if there are any, and otherwise through torch.
//
//    Multiplier multiplier(device);   // the device and its stream must stay current while this lives
//    multiplier.multiply(rows, weight, output);
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>

#include "fused/matmul/matrix_products.hpp"
#include "fused/products.hpp"

namespace axon::fused {

class Multiplier {
 public:
  explicit Multiplier(c10::Device device);
  // The same as axon::fused::multiply() and multiply_and_add().
  void multiply(const Rows& x, const Weight& weight, const at::Tensor& output);
  void multiply_and_add(const Rows& x, const Weight& weight, const at::Tensor& other, double factor,
                        const at::Tensor& output);

 private:
  bool enqueue(const std::optional<matmul::MatrixProduct>& product);

  const c10::Stream stream_;
  matmul::MatrixProducts* const products_;  // null: only torch's
  at::Tensor workspace_;                    // shared by the products, which run one after the other
};

}  // namespace axon::fused
