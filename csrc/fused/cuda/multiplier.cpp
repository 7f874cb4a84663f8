#include "fused/cuda/multiplier.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "c10d/convert.hpp"

namespace axon::fused {

namespace {

matmul::MatrixProducts* products_of(c10::Device device) {
  const Result<matmul::MatrixProducts*> products = matmul::MatrixProducts::of(device.index());
  return products.ok() ? products.value() : nullptr;
}

bool has_kernels(at::ScalarType dtype) {
  if (dtype == at::kHalf) return !at::globalContext().allowFP16AccumulationCuBLAS();
  return dtype == at::kBFloat16;
}

matmul::MatrixView view_of(const at::Tensor& matrix) {
  return {.data = matrix.const_data_ptr(), .stride = matrix.stride(0)};
}

// Returns whether cuBLASLt can read the bias, whose elements must be consecutive and aligned to 16 bytes.
bool can_be_read(const at::Tensor& bias) {
  return bias.is_contiguous() && reinterpret_cast<uintptr_t>(bias.const_data_ptr()) % 16 == 0;
}

// Returns nothing if torch has to compute the product.
std::optional<matmul::MatrixProduct> describe(const Rows& x, const Weight& weight, const at::Tensor& output) {
  const at::Tensor& factor = weight.values;
  if (weight.bias && !can_be_read(*weight.bias)) return std::nullopt;
  const bool in_rows = factor.stride(1) == 1 && factor.stride(0) >= factor.size(1);
  const bool in_columns = factor.stride(0) == 1 && factor.stride(1) >= factor.size(0);
  if (weight.scale.defined() || !has_kernels(output.scalar_type()) || !(in_rows || in_columns)) return std::nullopt;
  return matmul::MatrixProduct{
      .dtype = c10d_backend::to_data_type(output.scalar_type()),
      .num_rows = output.size(0),
      .depth = factor.size(0),
      .num_columns = output.size(1),
      .x = view_of(x.values),
      .weight = {.data = factor.const_data_ptr(), .stride = in_rows ? factor.stride(0) : factor.stride(1)},
      .weight_is_transposed = !in_rows,
      .output = view_of(output),
      .bias = weight.bias ? weight.bias->const_data_ptr() : nullptr};
}

}  // namespace

Multiplier::Multiplier(c10::Device device)
    : stream_(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device)), products_(products_of(device)) {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(device);
  if (products_ != nullptr) workspace_ = at::empty({matmul::MatrixProducts::kWorkspaceBytes}, bytes);
}

void Multiplier::multiply(const Rows& x, const Weight& weight, const at::Tensor& output) {
  if (output.numel() == 0 || enqueue(describe(x, weight, output))) return;
  fused::multiply(x, weight, output);
}

void Multiplier::multiply_and_add(const Rows& x, const Weight& weight, const at::Tensor& other, double factor,
                                  const at::Tensor& output) {
  if (output.numel() == 0) return;
  std::optional<matmul::MatrixProduct> product = describe(x, weight, output);
  if (product) {
    product->addend = view_of(other);
    product->factor = static_cast<float>(factor);
  }
  if (!enqueue(product)) fused::multiply_and_add(x, weight, other, factor, output);
}

// Returns whether cuBLASLt took the product. Otherwise torch computes it, or reports the error.
bool Multiplier::enqueue(const std::optional<matmul::MatrixProduct>& product) {
  if (!product || product->depth == 0 || products_ == nullptr) return false;
  const cuda::StreamView stream(static_cast<cudaStream_t>(stream_.native_handle()));
  return products_->enqueue(*product, workspace_.mutable_data_ptr(), stream).ok();
}

}  // namespace axon::fused
