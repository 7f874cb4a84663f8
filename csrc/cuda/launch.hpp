// Launches a kernel that was selected at run time. Stateless.
#pragma once

#include <driver_types.h>

#include <span>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::cuda {

struct LaunchShape {
  int num_blocks = 0;
  int num_threads = 0;          // per block
  size_t num_shared_bytes = 0;  // of dynamic shared memory per block
};

// The kernel must begin with await_stream(). Its blocks may become resident while earlier work on the stream ends
// (programmatic dependent launch). That saves part of a launch's latency, in graphs, too.
//
// `arguments` has one pointer per kernel parameter, as for cudaLaunchKernel.
Status launch(const void* kernel, LaunchShape shape, void** arguments, StreamView stream);

// Adds the kernel to a graph as a node that depends on these nodes.
Result<cudaGraphNode_t> add_kernel(cudaGraph_t graph, std::span<const cudaGraphNode_t> dependencies, const void* kernel,
                                   LaunchShape shape, void** arguments);

// Loads the kernel's code onto the current device now. Otherwise CUDA loads it at the first launch and waits for the
// device to do so. That wait never ends if a running kernel spins for a peer that comes later. Also sets the limit of
// dynamic shared memory per block.
Status load(const void* kernel, size_t num_shared_bytes = 0);

}  // namespace axon::cuda
