// Refuses what a call would send if it contains NaN and TORCH_DIST_NAN_CHECK is 1. torch checks so by hooks since 2.14.
// These checks serve all versions, and their errors name the call, the rank and the tensor, which torch's do not.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace axon::c10d_backend {

bool are_nan_checks_on();

// What an operation of a call would send.
struct CheckedInput {
  const char* operation;
  at::Tensor tensor;
};

// Throws a RuntimeError that names the first tensor with NaN. Waits until the current stream has reached this point if
// the tensors, all on one device, are on a GPU. If that stream is captured into a graph, each launch checks instead,
// and a NaN ends the process's use of CUDA.
void refuse_nans(const std::vector<CheckedInput>& inputs, int rank);

}  // namespace axon::c10d_backend
