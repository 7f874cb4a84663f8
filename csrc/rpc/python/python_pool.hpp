// A pool of host memory whose allocations are torch's, pinned or not.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "rpc/core/pools/memory_pool.hpp"

namespace axon::rpc_python {

// Makes a pool. Its take() must be called without the GIL, which no thread may wait for while it holds the pool's lock.
std::shared_ptr<rpc::MemoryPool> make_pool(size_t max_num_bytes, bool is_pinned);

// Returns an uninitialised tensor, whose memory returns to the pool with its storage; empty if the pool has no memory.
// Throws c10::Error if the host has no more memory, or no more that can be pinned. With the GIL.
std::optional<at::Tensor> take_tensor_from(rpc::MemoryPool& pool, at::ScalarType type, at::IntArrayRef shape);

}  // namespace axon::rpc_python
