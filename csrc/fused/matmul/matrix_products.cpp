#include "fused/matmul/matrix_products.hpp"

#include <cuda_runtime_api.h>

#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "cuda/device.hpp"
#include "cuda/error.hpp"
#include "fused/matmul/product_cut.hpp"
#include "fused/matmul/tile_choice.hpp"

namespace axon::matmul {

// There may be many sequence lengths; at the limit, all plans are dropped.
static constexpr size_t kMostPlans = 1024;
static constexpr int kMostCandidates = 16;
static constexpr int kMeasured = 90;  // the compute capability that tile_choice and product_cut were measured on

static bool adds(const MatrixProduct& product) noexcept {
  return product.addend.data != nullptr;
}

// Returns the alignment of the least aligned matrix in bytes, at most 256, the largest that a kernel requires.
static uint32_t alignment_of(const MatrixProduct& product) noexcept {
  uintptr_t bits = 256;
  for (const MatrixView& view : {product.x, product.weight, product.output, product.addend}) {
    bits |= reinterpret_cast<uintptr_t>(view.data);
  }
  return static_cast<uint32_t>(bits & (~bits + 1));
}

Result<MatrixProducts*> MatrixProducts::of(int device) {
  static std::mutex mutex;
  static auto* const all = new std::map<int, Result<std::unique_ptr<MatrixProducts>>>;
  const std::lock_guard lock(mutex);
  auto known = all->find(device);
  const bool is_known = known != all->end();
  if (!is_known) known = all->emplace(device, create(device)).first;
  Result<std::unique_ptr<MatrixProducts>>& made = known->second;
  if (!is_known && !made.ok())
    log::info("matrix products use torch, since cuBLASLt cannot be used: " + made.status().message());
  if (!made.ok()) return made.status().clone();
  return made.value().get();
}

Result<std::unique_ptr<MatrixProducts>> MatrixProducts::create(int device) {
  Result<const BlasLt*> blas = load_blas_lt();
  if (!blas.ok()) return std::move(blas.status());
  const cuda::DeviceGuard guard(device);
  int major = 0, minor = 0;
  AXON_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  AXON_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  BlasLt::Handle handle = nullptr;
  AXON_BLAS_TRY(blas.value(), create(&handle));
  return std::unique_ptr<MatrixProducts>(new MatrixProducts(*blas.value(), handle, 10 * major + minor));
}

static MatrixView rows_from(const MatrixView& view, int64_t row, DataType dtype) noexcept {
  if (view.data == nullptr) return view;
  const auto offset = static_cast<size_t>(row * view.stride) * size_of(dtype);
  return {.data = static_cast<const std::byte*>(view.data) + offset, .stride = view.stride};
}

Status MatrixProducts::enqueue(const MatrixProduct& product, void* workspace, cuda::StreamView stream) {
  const std::lock_guard lock(mutex_);
  if (compute_capability_ != kMeasured) return enqueue_piece(product, workspace, stream);
  const ProductCut cut(product.num_rows, product.depth, product.num_columns);
  for (int64_t number = 0; number < cut.num_pieces(); ++number) {
    const int64_t begin = cut.begin(number);
    MatrixProduct piece = product;
    piece.num_rows = cut.begin(number + 1) - begin;
    for (MatrixView* view : {&piece.x, &piece.output, &piece.addend}) *view = rows_from(*view, begin, product.dtype);
    AXON_TRY(enqueue_piece(piece, workspace, stream));
  }
  return Status();
}

// Call this with the lock held. cuBLASLt's matrices consist of columns, so it multiplies the transposes: outputᵀ =
// weightᵀ · xᵀ.
Status MatrixProducts::enqueue_piece(const MatrixProduct& product, void* workspace, cuda::StreamView stream) {
  Result<const Plan*> found = plan_of(product);
  if (!found.ok()) return std::move(found.status());
  const Plan& plan = *found.value();
  if (!plan.algorithm) return {ErrorCode::kInternal, "cuBLASLt has no kernel for the product"};
  if (product.bias != nullptr) {
    AXON_BLAS_TRY(&blas_,
                  set_of_description(plan.description.get(), BlasLt::kBiasPointer, &product.bias, sizeof product.bias));
  }
  const float beta = adds(product) ? product.factor : 0;
  void* const output = const_cast<void*>(product.output.data);
  AXON_BLAS_TRY(&blas_, multiply(handle_, plan.description.get(), &product.factor, product.weight.data,
                                 plan.weight.get(), product.x.data, plan.x.get(), &beta,
                                 adds(product) ? product.addend.data : output, plan.addend.get(), output,
                                 plan.output.get(), &*plan.algorithm, workspace, kWorkspaceBytes, stream.get()));
  return Status();
}

MatrixProducts::Shape MatrixProducts::shape_of(const MatrixProduct& product) noexcept {
  const int64_t kind = static_cast<int64_t>(product.dtype) << 3 | int64_t{product.weight_is_transposed} << 2 |
                       int64_t{product.bias != nullptr} << 1 | int64_t{adds(product)};
  return {kind,
          product.num_rows,
          product.depth,
          product.num_columns,
          product.x.stride,
          product.weight.stride,
          product.output.stride,
          product.addend.stride,
          alignment_of(product)};
}

Result<const MatrixProducts::Plan*> MatrixProducts::plan_of(const MatrixProduct& product) {
  const Shape shape = shape_of(product);
  const auto known = plans_.find(shape);
  if (known != plans_.end()) return &std::as_const(known->second);
  Result<Plan> made = make_plan(product);
  if (!made.ok()) return std::move(made.status());
  if (plans_.size() == kMostPlans) plans_.clear();
  return &std::as_const(plans_.emplace(shape, std::move(made).value()).first->second);
}

Result<MatrixProducts::Plan> MatrixProducts::make_plan(const MatrixProduct& product) const {
  Plan plan;
  AXON_TRY(describe(product, plan));
  const auto lay_out = [&](BlasLt::OwnLayout& layout, const MatrixView& view, int64_t row_length, int64_t num_rows) {
    BlasLt::Layout made = nullptr;
    const int type = product.dtype == DataType::kFloat16 ? BlasLt::kFloat16 : BlasLt::kBFloat16;
    AXON_BLAS_TRY(&blas_, create_layout(&made, type, static_cast<uint64_t>(row_length), static_cast<uint64_t>(num_rows),
                                        view.stride));
    layout.reset(made);
    return Status();
  };
  const auto [m, k, n] = std::tuple(product.num_rows, product.depth, product.num_columns);
  const bool transposed = product.weight_is_transposed;
  AXON_TRY(lay_out(plan.weight, product.weight, transposed ? k : n, transposed ? n : k));
  AXON_TRY(lay_out(plan.x, product.x, k, m));
  AXON_TRY(lay_out(plan.addend, adds(product) ? product.addend : product.output, n, m));
  AXON_TRY(lay_out(plan.output, product.output, n, m));
  AXON_TRY(choose_algorithm(product, plan));
  return plan;
}

Status MatrixProducts::describe(const MatrixProduct& product, Plan& plan) const {
  BlasLt::Description description = nullptr;
  AXON_BLAS_TRY(&blas_, create_description(&description, BlasLt::kComputeInFloat32, BlasLt::kFloat32));
  plan.description.reset(description);
  if (product.weight_is_transposed) {
    AXON_BLAS_TRY(&blas_, set_of_description(description, BlasLt::kTransposeA, &BlasLt::kTransposed, sizeof(int32_t)));
  }
  if (product.bias != nullptr) {
    AXON_BLAS_TRY(&blas_, set_of_description(description, BlasLt::kEpilogue, &BlasLt::kAddsBias, sizeof(int32_t)));
    AXON_BLAS_TRY(&blas_, set_of_description(description, BlasLt::kBiasPointer, &product.bias, sizeof(void*)));
  }
  return Status();
}

Result<BlasLt::OwnPreference> MatrixProducts::prefer(uint32_t alignment) const {
  BlasLt::Preference handle = nullptr;
  AXON_BLAS_TRY(&blas_, create_preference(&handle));
  BlasLt::OwnPreference preference(handle);
  AXON_BLAS_TRY(&blas_, set_of_preference(handle, BlasLt::kMostWorkspaceBytes, &kWorkspaceBytes, sizeof(size_t)));
  for (const int matrix : {0, 1, 2, 3}) {
    AXON_BLAS_TRY(&blas_, set_of_preference(handle, BlasLt::kAlignmentOfA + matrix, &alignment, sizeof alignment));
  }
  return preference;
}

int32_t MatrixProducts::attribute_of(const BlasLt::Algorithm& algorithm, int attribute) const noexcept {
  int32_t value = 0;
  size_t num_written = 0;
  (void)blas_.get_of_algorithm(&algorithm, attribute, &value, sizeof value, &num_written);
  return value;
}

// Considers only kernels that do not split an element's sum, which they accumulate in float32.
Status MatrixProducts::choose_algorithm(const MatrixProduct& product, Plan& plan) const {
  Result<BlasLt::OwnPreference> preference = prefer(alignment_of(product));
  if (!preference.ok()) return std::move(preference.status());
  std::array<BlasLt::Candidate, kMostCandidates> candidates{};
  int num_found = 0;
  AXON_BLAS_TRY(&blas_, find_candidates(handle_, plan.description.get(), plan.weight.get(), plan.x.get(),
                                        plan.addend.get(), plan.output.get(), preference.value().get(), kMostCandidates,
                                        candidates.data(), &num_found));
  std::vector<const BlasLt::Algorithm*> algorithms;
  std::vector<TiledKernel> kernels;
  for (const BlasLt::Candidate& candidate : std::span(candidates).first(static_cast<size_t>(num_found))) {
    const BlasLt::Algorithm& algorithm = candidate.algorithm;
    if (candidate.status != 0 || attribute_of(algorithm, BlasLt::kNumSplits) > 1) continue;
    algorithms.push_back(&algorithm);
    kernels.push_back({.tile = attribute_of(algorithm, BlasLt::kTile), .num_waves = candidate.num_waves});
  }
  if (kernels.empty()) return Status();
  plan.algorithm = *algorithms[compute_capability_ == kMeasured ? choose_kernel(kernels, product.depth) : 0];
  return Status();
}

}  // namespace axon::matmul
