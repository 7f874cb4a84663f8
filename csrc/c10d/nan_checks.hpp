// Checks the inputs of calls for NaN if TORCH_DIST_NAN_CHECK is 1. torch does so since 2.14, by hooks. These checks
// serve all versions, and their errors name the call, the rank and the tensor, which torch's do not.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace axon::c10d_backend {

// Returns whether TORCH_DIST_NAN_CHECK is 1.
bool are_nan_checks_on();

// A tensor that a call is about to send, and the operation that sends it, as errors name it.
struct CheckedInput {
  const char* operation;
  at::Tensor tensor;
};

// Throws a RuntimeError that names the first tensor with NaN. Waits until the current stream has reached this point if
// the tensors, all on one device, are on a GPU. If that stream is captured into a graph, each launch checks instead,
// and a NaN ends the process's use of CUDA.
void refuse_nans(const std::vector<CheckedInput>& inputs, int rank);

}  // namespace axon::c10d_backend
