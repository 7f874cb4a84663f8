// Tensor memory that peers can always map, independent of torch's own allocator. The driver allocates it, and file
// descriptors share it, as with the arena.
//
//    backend.mem_allocator           for torch.cuda.MemPool; passes our two C functions to torch
//    backend.allocate_tensor(…)      one tensor from a pool of ours
//
// torch's pools belong to its CUDA library, which the extension does not link. The extension reaches them through
// Python (torch_axon/_memory.py), which finds the two functions in this extension by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

namespace axon::c10d_backend {

// Returns whether this build and device have registered memory. Builds without CUDA have none.
bool has_registered_memory(c10::DeviceIndex device) noexcept;
// Throws, with the reason, if there is none.
void check_registered_memory(const char* operation, c10::Device device);

// Returns a tensor of one dimension. Any thread, with the GIL or without.
at::Tensor allocate_registered(int64_t num_elements, const at::TensorOptions& options);

}  // namespace axon::c10d_backend
