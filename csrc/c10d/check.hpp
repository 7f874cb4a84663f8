// What a call's arguments must be. Every message names the operation, the argument, what it was and what is allowed;
// nothing has been sent when one of these throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "c10d/convert.hpp"

namespace axon::c10d_backend {

// An argument of a call, for messages: "all_reduce", "tensor".
struct Argument {
  const char* operation;
  const char* name;
};

using TensorList = std::vector<at::Tensor>;

// Strided, on the CPU or a CUDA device, with memory of its own.
void check_tensor(Argument argument, const at::Tensor& tensor);
// The same for each, and all of one type.
void check_tensors(Argument argument, const TensorList& tensors, at::ScalarType type);
void check_type(Argument argument, const at::Tensor& tensor, at::ScalarType type);

void check_length(Argument argument, size_t length, size_t expected);
// torch hands most single tensors over in lists of one.
const at::Tensor& single(Argument argument, const TensorList& tensors);
const TensorList& single(Argument argument, const std::vector<TensorList>& lists);

void check_num_elements(Argument argument, const at::Tensor& tensor, int64_t expected);
// Of the block that a rank sends to itself.
void check_num_bytes(Argument argument, size_t received, size_t sent);
void check_rank(Argument argument, int64_t rank, int size);
void check_tag(Argument argument, int64_t tag);
void check_reduction(Argument argument, const at::Tensor& tensor, const ReductionSpecification& reduction, int size);

// Rows of the first dimension for each rank: the splits given, or equal ones where there are none.
std::vector<int64_t> check_splits(Argument argument, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                  int size);

}  // namespace axon::c10d_backend
