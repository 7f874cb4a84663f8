// A pool of host memory whose allocations are torch's, pinned or not.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "rpc/core/pools/memory_pool.hpp"

namespace axon::rpc_python {

// Makes a pool. Call its take() without the GIL. No thread may wait for the GIL while it holds a lock of the pool.
std::shared_ptr<rpc::MemoryPool> make_pool(size_t max_num_bytes, bool is_pinned);

// Returns an uninitialised tensor, whose memory returns to the pool with its storage; empty if the pool has no memory.
// Throws c10::Error if the host has no more memory, or no more that can be pinned. With the GIL.
std::optional<at::Tensor> take_tensor_from(rpc::MemoryPool& pool, at::ScalarType type, at::IntArrayRef shape);

}  // namespace axon::rpc_python
