// torch.ops.axon's operators without torch's dispatcher, which takes longer to call one from Python than the host takes
// to launch all its kernels: for calls that neither it nor anything that it would come to has something to do for.
//
// Nothing is returned, and nothing has been done, for any other call, and for one whose arguments do not fit: the
// operator does, or says what is wrong. So the ranks of a group may take either.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace axon::fused {

// x [m, k], the same m on all ranks; weights [k, n] each, biases [n] each. As all_gather_matmul.
std::optional<std::tuple<at::Tensor, std::vector<at::Tensor>>> all_gather_matmul_at_once(
    const at::Tensor& x, const std::vector<at::Tensor>& weights, const std::vector<std::optional<at::Tensor>>& biases,
    const std::string& group_name, bool return_gathered);

// x [m, k], of which each rank gets as many rows. As matmul_reduce_scatter.
std::optional<at::Tensor> matmul_reduce_scatter_at_once(const at::Tensor& x, const at::Tensor& weight,
                                                        const std::optional<at::Tensor>& bias,
                                                        const std::string& reduce_op, const std::string& group_name);

}  // namespace axon::fused
