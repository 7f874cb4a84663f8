// Launching a kernel that was chosen at run time.
#pragma once

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::cuda {

struct LaunchShape {
  int num_blocks = 0;
  int num_threads = 0;          // in a block
  size_t num_shared_bytes = 0;  // of dynamic shared memory, a block
};

// The kernel begins with await_stream(), and may be put in place while what is ahead of it on the stream ends
// (programmatic dependent launch), which spares part of a launch's latency, in graphs too.
//
// `arguments` points to one pointer a kernel parameter, as cudaLaunchKernel wants them.
Status launch(const void* kernel, LaunchShape shape, void** arguments, StreamView stream);

// Puts the kernel's code on the current device now. CUDA otherwise loads at the first launch and waits for the device
// to do so, for ever if a kernel there spins on a peer that comes later. From then on its blocks may have so much
// dynamic shared memory.
Status load(const void* kernel, size_t num_shared_bytes = 0);

}  // namespace axon::cuda
