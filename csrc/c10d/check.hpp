// Checks a call's arguments. Every message names the operation, the argument, its value and what is allowed. These
// checks throw before anything is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "c10d/convert.hpp"

namespace axon::c10d_backend {

// Throws ValueError unless it is more than 0 ms.
void check_timeout(std::chrono::milliseconds timeout);

// An argument of a call, for messages: "all_reduce", "tensor".
struct Argument {
  const char* operation;
  const char* name;
};

using TensorList = std::vector<at::Tensor>;

// Accepts strided tensors on the CPU or a CUDA device, with memory of their own.
void check_tensor(Argument argument, const at::Tensor& tensor);
// Checks each tensor, and that all have this type.
void check_tensors(Argument argument, const TensorList& tensors, at::ScalarType type);
void check_type(Argument argument, const at::Tensor& tensor, at::ScalarType type);

void check_length(Argument argument, size_t length, size_t expected);
// Returns the only tensor of a list: torch passes most single tensors in lists of one.
const at::Tensor& single(Argument argument, const TensorList& tensors);
const TensorList& single(Argument argument, const std::vector<TensorList>& lists);

void check_num_elements(Argument argument, const at::Tensor& tensor, int64_t expected);
// Checks the block that a rank sends to itself.
void check_num_bytes(Argument argument, size_t received, size_t sent);
void check_rank(Argument argument, int64_t rank, int size);
void check_tag(Argument argument, int64_t tag);
void check_reduction(Argument argument, const at::Tensor& tensor, const ReductionSpecification& reduction, int size);

// Returns each rank's rows of the first dimension: the given splits, or equal ones if none are given.
std::vector<int64_t> check_splits(Argument argument, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                  int size);

}  // namespace axon::c10d_backend
