// Launching a kernel that was chosen at run time.
#pragma once

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon {

struct LaunchShape {
  int num_blocks = 0;
  int num_threads = 0;  // in a block
};

// `arguments` points to one pointer a kernel parameter, as cudaLaunchKernel wants them.
Status launch(const void* kernel, LaunchShape shape, void** arguments, StreamView stream);

// Puts the kernel's code on the current device now. CUDA otherwise loads at the first launch and waits for the device
// to do so, for ever if a kernel there spins on a peer that comes later.
Status load(const void* kernel);

}  // namespace axon
