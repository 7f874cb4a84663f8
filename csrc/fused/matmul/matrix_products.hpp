// Matrix products by cuBLASLt, each with the kernel that is fastest on a hot device (tile_choice.hpp).
//
//   Result<MatrixProducts*> products = MatrixProducts::of(device);
//   AXON_TRY(products.value()->enqueue(product, workspace, stream));
//
// There is one object per device and process. It is never destroyed, since that would call CUDA while the process
// exits. Thread-safe. The plan for a shape is cached, for a limited number of shapes. The first product of a shape
// costs the host about 0.1 ms more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/data_type.hpp"
#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "fused/matmul/blas_lt.hpp"

namespace axon::matmul {

// A matrix whose rows consist of consecutive elements.
struct MatrixView {
  const void* data = nullptr;
  int64_t stride = 0;  // elements from one row to the next
};

// output [num_rows, num_columns] = factor · (x · weight + addend) + bias, accumulated in float32 and rounded once.
struct MatrixProduct {
  DataType dtype{};                                  // kFloat16 or kBFloat16, of all matrices
  int64_t num_rows = 0, depth = 0, num_columns = 0;  // nonzero
  MatrixView x{};
  MatrixView weight{};
  bool weight_is_transposed = false;  // the view holds the transpose's rows
  MatrixView output{};                // written
  MatrixView addend{};                // null data: no addend
  const void* bias = nullptr;         // [num_columns], consecutive, aligned to 16 bytes; null: no bias
  float factor = 1;
};

class MatrixProducts {
 public:
  // Each product needs its own workspace while it runs.
  static constexpr size_t kWorkspaceBytes = size_t{1} << 20;

  // Fails without cuBLASLt. Kernels are chosen for GPUs of compute capability 9.0; other GPUs use cuBLASLt's first
  // proposal.
  static Result<MatrixProducts*> of(int device);

  // Fails if cuBLASLt has no kernel for the product. The device of this object must be current.
  Status enqueue(const MatrixProduct& product, void* workspace, cuda::StreamView stream);

 private:
  using Shape = std::array<int64_t, 9>;
  // How products of one shape are computed.
  struct Plan {
    BlasLt::OwnDescription description;
    BlasLt::OwnLayout weight, x, addend, output;
    std::optional<BlasLt::Algorithm> algorithm;  // nullopt if there is no kernel
  };

  MatrixProducts(const BlasLt& blas, BlasLt::Handle handle, int compute_capability) noexcept
      : blas_(blas), handle_(handle), compute_capability_(compute_capability) {}
  static Result<std::unique_ptr<MatrixProducts>> create(int device);
  static Shape shape_of(const MatrixProduct& product) noexcept;
  Status enqueue_piece(const MatrixProduct& product, void* workspace, cuda::StreamView stream);
  Result<const Plan*> plan_of(const MatrixProduct& product);
  Result<Plan> make_plan(const MatrixProduct& product) const;
  Status describe(const MatrixProduct& product, Plan& plan) const;
  Result<BlasLt::OwnPreference> prefer(uint32_t alignment) const;
  int32_t attribute_of(const BlasLt::Algorithm& algorithm, int attribute) const noexcept;
  Status choose_algorithm(const MatrixProduct& product, Plan& plan) const;

  const BlasLt& blas_;
  const BlasLt::Handle handle_;
  const int compute_capability_;
  std::mutex mutex_;  // guards the members below; descriptions contain a call's bias
  std::map<Shape, Plan> plans_;
};

}  // namespace axon::matmul
