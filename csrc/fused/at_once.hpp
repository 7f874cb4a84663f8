// Calls torch.ops.axon's operators without torch's dispatcher, if the dispatcher would only call the kernel. From
// Python, the dispatcher takes longer for one call than the host takes to launch all its kernels.
//
// Any other call, and one whose arguments do not fit, returns nothing and has no effect. The caller then calls the
// operator, which does the work or reports the error. Ranks of a group may differ in which of the two they call.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace axon::fused {

// The same as all_gather_matmul: x is [m, k], with the same m on all ranks; each weight is [k, n], each bias [n].
std::optional<std::tuple<at::Tensor, std::vector<at::Tensor>>> all_gather_matmul_at_once(
    const at::Tensor& x, const std::vector<at::Tensor>& weights, const std::vector<std::optional<at::Tensor>>& biases,
    const std::string& group_name, bool return_gathered);

// The same as matmul_reduce_scatter: x is [m, k], and each rank gets the same number of its rows.
std::optional<at::Tensor> matmul_reduce_scatter_at_once(const at::Tensor& x, const at::Tensor& weight,
                                                        const std::optional<at::Tensor>& bias,
                                                        const std::string& reduce_op, const std::string& group_name);

}  // namespace axon::fused
