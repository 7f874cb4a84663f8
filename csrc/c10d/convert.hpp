// torch's words into the engine's.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/data_type.hpp"
#include "engine/operation.hpp"

namespace axon::c10d_backend {

// Types that the engine does not calculate with (float8, …) move as bytes.
DataType to_data_type(at::ScalarType type) noexcept;

// How many elements of `type` a tensor is to the engine: bytes, where it is moved as bytes.
size_t count_elements(const at::Tensor& tensor, DataType type);

engine::Shape to_shape(const at::Tensor& tensor);

struct ReductionSpecification {
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1.0;
};

// Throws ValueError, naming `operation`, when torch's ReduceOp is none.
ReductionSpecification to_reduction(const c10d::ReduceOp& op, const char* operation);

// The memory of a tensor that is laid out without gaps.
Buffer to_buffer(const at::Tensor& tensor);

}  // namespace axon::c10d_backend
