// The matrix products of one call on CUDA tensors, on the current stream: by kernels chosen for a hot device
// (fused/matmul/matrix_products.hpp) where there are some for them, else by torch's.
//
//   Multiplier multiplier(device);     // the current one, as its stream, as long as this lives
//   multiplier.multiply(rows, weight, output);
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
  // As axon::multiply() and multiply_and_add().
  void multiply(const Rows& x, const Weight& weight, const at::Tensor& output);
  void multiply_and_add(const Rows& x, const Weight& weight, const at::Tensor& other, double factor,
                        const at::Tensor& output);

 private:
  bool enqueue(const std::optional<matmul::MatrixProduct>& product);

  const c10::Stream stream_;
  matmul::MatrixProducts* const products_;  // none: torch's alone
  at::Tensor workspace_;                    // of the products, one after the other
};

}  // namespace axon::fused
