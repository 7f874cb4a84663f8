// Products of small integers, which are exact in any order of summation.
#include "fused/matmul/matrix_products.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/memory.hpp"

namespace axon::matmul {
namespace {

constexpr int64_t kRows = 384, kDepth = 256, kColumns = 512;

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

template <typename T>
T value(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

using Floats = std::vector<float>;

// Returns values from -2 to 2, in rows.
Floats draw(int64_t num_rows, int64_t num_columns, uint32_t seed) {
  std::mt19937 random(seed);
  Floats matrix(static_cast<size_t>(num_rows * num_columns));
  for (float& each : matrix) each = static_cast<float>(random() % 5) - 2;
  return matrix;
}

// Row-major, its rows `padding` elements apart.
template <typename T>
class DeviceMatrix {
 public:
  DeviceMatrix(const Floats& matrix, int64_t num_columns, int64_t padding = 0)
      : num_columns_(static_cast<size_t>(num_columns)),
        stride_(static_cast<size_t>(num_columns + padding)),
        host_(matrix.size() / num_columns_ * stride_),
        memory_(value(cuda::DeviceMemory::allocate(host_.size() * sizeof(T)))) {
    for (size_t i = 0; i < matrix.size(); ++i) host_[i / num_columns_ * stride_ + i % num_columns_] = T(matrix[i]);
    check(cudaMemcpy(memory_.data(), host_.data(), host_.size() * sizeof(T), cudaMemcpyHostToDevice));
  }

  MatrixView view() const { return {.data = memory_.data(), .stride = static_cast<int64_t>(stride_)}; }

  Floats read() {
    check(cudaMemcpy(host_.data(), memory_.data(), host_.size() * sizeof(T), cudaMemcpyDeviceToHost));
    Floats matrix;
    for (size_t i = 0; i < host_.size(); ++i) {
      if (i % stride_ < num_columns_) matrix.push_back(static_cast<float>(host_[i]));
    }
    return matrix;
  }

 private:
  size_t num_columns_, stride_;
  std::vector<T> host_;
  cuda::DeviceMemory memory_;
};

Floats multiply(const Floats& x, const Floats& weight) {
  Floats product(kRows * kColumns);
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t k = 0; k < kDepth; ++k) {
      for (size_t j = 0; j < kColumns; ++j) product[i * kColumns + j] += x[i * kDepth + k] * weight[k * kColumns + j];
    }
  }
  return product;
}

Floats transpose(const Floats& matrix, int64_t num_rows, int64_t num_columns) {
  Floats transposed;
  for (int64_t column = 0; column < num_columns; ++column) {
    for (int64_t row = 0; row < num_rows; ++row) {
      transposed.push_back(matrix[static_cast<size_t>(row * num_columns + column)]);
    }
  }
  return transposed;
}

template <typename T>
class MatrixProductsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU, found none";
    if (!load_blas_lt().ok()) GTEST_SKIP() << "needs cuBLASLt, found none";
  }

  MatrixProduct product(const DeviceMatrix<T>& x, const DeviceMatrix<T>& weight, const DeviceMatrix<T>& output) const {
    return {.dtype = std::is_same_v<T, __half> ? DataType::kFloat16 : DataType::kBFloat16,
            .num_rows = kRows,
            .depth = kDepth,
            .num_columns = kColumns,
            .x = x.view(),
            .weight = weight.view(),
            .output = output.view()};
  }

  void run(const MatrixProduct& product) const {
    MatrixProducts* const products = value(MatrixProducts::of(0));
    const cuda::DeviceMemory workspace = value(cuda::DeviceMemory::allocate(MatrixProducts::kWorkspaceBytes));
    const cuda::Stream stream = value(cuda::Stream::create());
    for (int again = 0; again < 2; ++again) check(products->enqueue(product, workspace.data(), stream));
    check(stream.view().synchronize());
  }

  static Floats rounded(Floats matrix) {
    for (float& each : matrix) each = static_cast<float>(T(each));
    return matrix;
  }

  const Floats x_ = draw(kRows, kDepth, 1), weight_ = draw(kDepth, kColumns, 2);
  const Floats nothing_ = Floats(kRows * kColumns);
};

using Types = testing::Types<__half, __nv_bfloat16>;
TYPED_TEST_SUITE(MatrixProductsTest, Types);

TYPED_TEST(MatrixProductsTest, of_rows_in_larger_matrices) {
  for (const int64_t padding : {0, 8, 1}) {
    const DeviceMatrix<TypeParam> x(this->x_, kDepth, padding), weight(this->weight_, kColumns, padding);
    DeviceMatrix<TypeParam> output(this->nothing_, kColumns, padding);
    this->run(this->product(x, weight, output));
    EXPECT_EQ(output.read(), this->rounded(multiply(this->x_, this->weight_))) << "padding " << padding;
  }
}

TYPED_TEST(MatrixProductsTest, of_a_transposed_weight_with_a_bias) {
  const Floats bias = draw(1, kColumns, 3);
  const DeviceMatrix<TypeParam> x(this->x_, kDepth);
  const DeviceMatrix<TypeParam> weight(transpose(this->weight_, kDepth, kColumns), kDepth);
  const DeviceMatrix<TypeParam> addend(bias, kColumns);
  DeviceMatrix<TypeParam> output(this->nothing_, kColumns);
  MatrixProduct product = this->product(x, weight, output);
  product.weight_is_transposed = true;
  product.bias = addend.view().data;
  this->run(product);
  Floats expected = multiply(this->x_, this->weight_);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % kColumns];
  EXPECT_EQ(output.read(), this->rounded(expected));
}

TYPED_TEST(MatrixProductsTest, that_are_added_and_halved_are_rounded_once) {
  const Floats other = draw(kRows, kColumns, 4);
  const DeviceMatrix<TypeParam> x(this->x_, kDepth), weight(this->weight_, kColumns), addend(other, kColumns, 8);
  DeviceMatrix<TypeParam> output(this->nothing_, kColumns);
  MatrixProduct product = this->product(x, weight, output);
  product.addend = addend.view();
  product.factor = 0.5F;
  this->run(product);
  Floats expected = multiply(this->x_, this->weight_);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = (expected[i] + other[i]) / 2;
  EXPECT_EQ(output.read(), this->rounded(expected));
}

}  // namespace
}  // namespace axon::matmul
