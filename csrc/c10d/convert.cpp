#include "c10d/convert.hpp"

#include <algorithm>
#include <string>

#include "c10d/errors.hpp"

namespace axon::c10d_backend {

DataType to_data_type(at::ScalarType type) noexcept {
  switch (type) {
    case at::ScalarType::Bool:
      return DataType::kBool;
    case at::ScalarType::Char:
      return DataType::kInt8;
    case at::ScalarType::Byte:
      return DataType::kUint8;
    case at::ScalarType::Short:
      return DataType::kInt16;
    case at::ScalarType::UInt16:
      return DataType::kUint16;
    case at::ScalarType::Int:
      return DataType::kInt32;
    case at::ScalarType::UInt32:
      return DataType::kUint32;
    case at::ScalarType::Long:
      return DataType::kInt64;
    case at::ScalarType::UInt64:
      return DataType::kUint64;
    case at::ScalarType::Half:
      return DataType::kFloat16;
    case at::ScalarType::BFloat16:
      return DataType::kBFloat16;
    case at::ScalarType::Float:
      return DataType::kFloat32;
    case at::ScalarType::Double:
      return DataType::kFloat64;
    case at::ScalarType::ComplexFloat:
      return DataType::kComplex64;
    case at::ScalarType::ComplexDouble:
      return DataType::kComplex128;
    default:
      return DataType::kByte;
  }
}

size_t count_elements(const at::Tensor& tensor, DataType type) {
  const auto num_elements = static_cast<size_t>(tensor.numel());
  return type == DataType::kByte ? num_elements * tensor.element_size() : num_elements;
}

engine::Shape to_shape(const at::Tensor& tensor) {
  engine::Shape shape;
  const at::IntArrayRef sizes = tensor.sizes();
  shape.num_dimensions = static_cast<uint8_t>(std::min(sizes.size(), engine::Shape::kMostDimensions));
  std::copy_n(sizes.begin(), shape.num_dimensions, shape.sizes.begin());
  return shape;
}

static double premul_factor_of(const c10d::ReduceOp& op, const char* operation) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw_value_error(std::string(operation) + ": PREMUL_SUM without a factor; make it with _make_nccl_premul_sum");
  }
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

ReductionSpecification to_reduction(const c10d::ReduceOp& op, const char* operation) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {.reduction = Reduction::kSum};
    case c10d::ReduceOp::AVG:
      return {.reduction = Reduction::kAverage};
    case c10d::ReduceOp::PRODUCT:
      return {.reduction = Reduction::kProduct};
    case c10d::ReduceOp::MIN:
      return {.reduction = Reduction::kMin};
    case c10d::ReduceOp::MAX:
      return {.reduction = Reduction::kMax};
    case c10d::ReduceOp::BAND:
      return {.reduction = Reduction::kBitAnd};
    case c10d::ReduceOp::BOR:
      return {.reduction = Reduction::kBitOr};
    case c10d::ReduceOp::BXOR:
      return {.reduction = Reduction::kBitXor};
    case c10d::ReduceOp::PREMUL_SUM:
      return {.reduction = Reduction::kPremulSum, .premul_factor = premul_factor_of(op, operation)};
    default:
      throw_value_error(std::string(operation) + ": argument 'op' is ReduceOp " + std::to_string(op.op_) +
                        "; allowed: SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM");
  }
}

Buffer to_buffer(const at::Tensor& tensor) {
  return {.data = static_cast<std::byte*>(tensor.data_ptr()),
          .num_bytes = tensor.nbytes(),
          .kind = tensor.is_cpu() ? MemoryKind::kHost : MemoryKind::kCuda};
}

}  // namespace axon::c10d_backend
