// Memory for tensors that peers can map in any case, whatever torch's own allocator does: made by the driver and shared
// by file descriptors, as the arena is.
//
//   backend.mem_allocator           for torch.cuda.MemPool; hands our two C functions to torch
//   backend.allocate_tensor(…)      one tensor, of a pool of ours
//
// torch's pools belong to its CUDA library, which the extension does not link: they are reached through Python
// (torch_axon/_memory.py), which finds the functions in this extension by their names.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

namespace axon::c10d_backend {

// Not in a build without CUDA.
bool has_registered_memory(c10::DeviceIndex device) noexcept;
// Throws, saying why, where there is none.
void check_registered_memory(const char* operation, c10::Device device);

// One dimension. Any thread, with Python's lock or without.
at::Tensor allocate_registered(int64_t num_elements, const at::TensorOptions& options);

}  // namespace axon::c10d_backend
