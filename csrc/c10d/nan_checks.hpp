// Checks what a group's calls send for NaNs, as torch's NanCheckHook does since 2.14 if TORCH_DIST_NAN_CHECK is 1. On
// the CPU our error names the call, the rank and the tensor; torch's names none of them. Tensors with gaps and complex
// ones are checked, too. On a GPU torch's kernel checks, which ends the process's use of CUDA at a NaN.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace axon::c10d_backend {

// All later calls of the group are checked, before they start. Throws up to torch 2.13, which has no hook for it.
void check_for_nans(c10d::ProcessGroup& group);

}  // namespace axon::c10d_backend
