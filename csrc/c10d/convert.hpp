// Converts torch's types to the engine's.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/data_type.hpp"
#include "engine/operation.hpp"

namespace axon::c10d_backend {

// Types without arithmetic in the engine (float8, …) move as bytes.
DataType to_data_type(at::ScalarType type) noexcept;

// Returns the tensor's number of elements of `type`, which is its number of bytes where the tensor moves as bytes.
size_t count_elements(const at::Tensor& tensor, DataType type);

engine::Shape to_shape(const at::Tensor& tensor);

struct ReductionSpecification {
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1.0;
};

// Throws ValueError, which names `operation`, if the engine does not support torch's ReduceOp.
ReductionSpecification to_reduction(const c10d::ReduceOp& op, const char* operation);

// Returns the memory of a tensor without gaps.
Buffer to_buffer(const at::Tensor& tensor);

}  // namespace axon::c10d_backend
